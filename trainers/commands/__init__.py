"""A user's own training, run by its command: its processes, the steps that it reports, and their figures."""
