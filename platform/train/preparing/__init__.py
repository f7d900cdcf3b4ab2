"""The parts of `prepare`, which converts text, JSON lines, Parquet and Megatron pairs to token Parquet."""
