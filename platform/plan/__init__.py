"""`python -m platform.plan`: answers before anything is measured, as pure functions of predictions."""
