"""`python -m platform.train`: a training's plan, folder and attempts; comparisons, exports, preparation of data."""
