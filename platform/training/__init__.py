"""The parts of `platform.train`: the plan, the folder, attempts after each other, progress, MLflow."""
