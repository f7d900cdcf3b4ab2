"""transformers' models as they are trained: built, filled with their first weights, converted to FP8."""
