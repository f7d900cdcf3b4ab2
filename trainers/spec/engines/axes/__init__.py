"""The axes that some engines have: a file for each, named as the axis. See `trainers.spec.engines.engine_axis`."""
