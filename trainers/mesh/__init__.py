"""The mesh of a trial's ranks, and what splits a model over it: tensor, context and pipeline parallelism."""
