"""`python -m platform.plan`: predicts layouts, speed, memory and cost before anything is measured."""
