"""Predictions of a layout's time and memory before it runs: pure functions over numbers and arrays, no torch, no Ray,
no clock.
"""
