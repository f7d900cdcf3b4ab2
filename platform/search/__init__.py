"""`python -m platform.search`: `setup`, `confirmation`, `loop` and `session`, each importing only those before it."""
