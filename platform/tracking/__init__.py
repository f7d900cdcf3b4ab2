"""MLflow, and W&B behind the same interface, as mirrors of a study's journal."""
