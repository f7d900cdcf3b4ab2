"""`python -m platform.report`, and the views of a study for people and programs, all computed from its journal."""
