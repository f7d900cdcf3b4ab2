"""Measures a batch point on one rank: timed windows, device clocks, memory, and the figures computed from them."""
