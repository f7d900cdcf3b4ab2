"""The result of a study, from its journal: ranking, ties, numerics gates, coverage, and one value of them all."""
