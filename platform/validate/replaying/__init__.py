"""Replays recorded results as trials: which rows a searcher would have run, and their cost."""
