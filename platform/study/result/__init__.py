"""What a study's journal says: ranking, ties, numerics gates, coverage, and the result of them all."""
