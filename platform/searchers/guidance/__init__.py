"""Parts of the guided searcher: points, their posterior, pruning, and the value of a trial."""
