"""The parts of `validate`: the report of a validation, and its tables."""
