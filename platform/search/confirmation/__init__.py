"""Runs after the search: the best points again in fresh processes, the winner at length, and its numerics gate."""
