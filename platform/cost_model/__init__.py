"""Predicts a layout's step time and memory before it runs: pure functions of arrays, without torch, Ray or a clock."""
