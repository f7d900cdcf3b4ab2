"""The engines as they run. What they accept is said in `trainers.spec.engines`."""
