"""DeepSpeed's ZeRO."""
