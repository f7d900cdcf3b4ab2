"""`python -m platform.validate`: reads published tables, scores the cost model and replays searches on them."""
