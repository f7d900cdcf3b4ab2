"""The runs after a search: the best points again in fresh processes, the winner at length, and its numerics gate."""
