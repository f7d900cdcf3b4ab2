"""Compares this project's search with others on one machine: same model, recipe, axes and engines, another search.

`python -m benchmarks.beside_peers --help` lists the peers. `trial` is the training function that the peers call, each
peer is a module of its own, and `score` turns what they wrote into one table.
"""
