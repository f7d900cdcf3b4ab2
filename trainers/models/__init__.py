"""transformers' models for training: built, filled with initial weights, given adapters, converted to FP8 or NF4."""
