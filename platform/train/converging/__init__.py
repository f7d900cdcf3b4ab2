"""The parts of `platform.converge`: what is compared, learning rates, trainings one after another, curves, verdicts."""
