"""`python -m platform.train`: a training's plan, folder and attempts; comparisons, exports and the preparation of data."""
