"""The final runs after a search: the best points run again in processes of their own, and what follows from them."""
