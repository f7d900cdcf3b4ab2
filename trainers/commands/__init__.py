"""A user's own training, run by its command: its processes, the steps that it tells, and the figures made of them."""
