"""The search loop: which trial runs next within the budgets, what its end means, and how Ray Tune runs it."""
