"""Answers before anything is measured: best layouts, scaling, what fits, schedules. Pure functions of predictions."""
