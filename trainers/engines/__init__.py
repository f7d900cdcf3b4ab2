"""The engines' runtimes; `trainers.spec.engines` has the rules of what they accept."""
