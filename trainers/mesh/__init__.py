"""The mesh of a trial's ranks, and how a model is split over it: tensor, context, pipeline and expert parallelism."""
