"""`python -m platform.validate`: other people's tables read, the cost model scored on them, searches replayed on them."""
