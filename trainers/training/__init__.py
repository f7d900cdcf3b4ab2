"""A training on the workers: the loop of optimizer steps, held-out loss, checkpoints that any layout can resume."""
