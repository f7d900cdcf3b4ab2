"""MLflow as a mirror of a study's journal."""
