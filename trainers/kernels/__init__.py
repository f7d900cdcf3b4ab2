"""Faster code that must not change the loss: attention, the head with its loss, fused blocks, compiled code."""
