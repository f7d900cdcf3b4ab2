"""The rooms of the guided searcher: its points, what it learns of them, what it rules out, what a trial is worth."""
