"""Measuring a batch point on one rank: windows, clocks, memory, and the figures that they add up to."""
