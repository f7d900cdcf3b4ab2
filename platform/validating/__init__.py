"""A validation: what it found, and how people see it."""
