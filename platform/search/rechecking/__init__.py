"""Runs the winner of an old study again: `python -m platform.recheck`."""
