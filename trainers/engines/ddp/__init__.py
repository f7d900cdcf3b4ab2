"""Torch's DistributedDataParallel."""
