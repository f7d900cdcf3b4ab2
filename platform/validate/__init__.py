"""`python -m platform.validate`: other people's tables read, the cost model scored and searches replayed on them."""
