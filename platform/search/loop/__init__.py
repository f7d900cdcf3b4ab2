"""The search loop: chooses the next trial within the budgets, and runs it through Ray Tune."""
