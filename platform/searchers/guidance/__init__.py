"""The parts of the guided searcher: its points, their posterior, what it rules out, and what a trial is worth."""
