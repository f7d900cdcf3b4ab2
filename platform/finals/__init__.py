"""What follows a search: the best points run again in processes of their own, and what may be said of them then."""
