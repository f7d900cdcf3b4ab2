"""Parts of the guided searcher: its points, their posterior, pruning, and the value of a trial."""
