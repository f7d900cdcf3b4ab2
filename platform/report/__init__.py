"""`python -m platform.report`, and all that shows a study to people and programs, made from the journal alone."""
