"""Peak memory of a rank: the sound floor that the search prunes by."""

from platform.cost_model.lower_bound import LowerBound, lower_bound, lower_bound_gib

__all__ = ["LowerBound", "lower_bound", "lower_bound_gib"]
