"""The search loop: chooses the next trial within the budgets, decides what its end means, and runs it through Ray
Tune.
"""
