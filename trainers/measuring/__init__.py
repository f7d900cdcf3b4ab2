"""Measures a batch point on one rank: windows, clocks, memory, and the figures made from them."""
