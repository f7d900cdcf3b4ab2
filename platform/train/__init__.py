"""The parts of `platform.train`: the plan, the training's folder, attempts after each other, progress, MLflow."""
