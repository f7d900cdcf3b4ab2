"""The engines' runtimes; the rules of which trainings they accept are in `trainers.spec.engines`."""
