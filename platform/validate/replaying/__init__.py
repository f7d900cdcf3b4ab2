"""Replays recorded results as trials: the rows that a searcher would have run, and their cost."""
