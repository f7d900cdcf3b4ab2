"""Axes that only some engines have: a file for each, named like the axis. See `trainers.spec.engines.engine_axis`."""
