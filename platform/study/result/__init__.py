"""The result of a study, computed from its journal: ranking, ties, numerics gates, coverage, caveats."""
