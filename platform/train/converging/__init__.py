"""The parts of `platform.converge`: strategies, learning rates, trainings one after another, curves, verdicts."""
