"""`python -m platform.search`. Its rooms `setup`, `confirmation`, `loop` and `session` import only earlier ones."""
