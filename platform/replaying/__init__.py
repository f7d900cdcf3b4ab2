"""Recorded results as trials: what a searcher would have run of a table, and what that would have cost."""
