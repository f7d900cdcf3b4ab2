"""The parts of `prepare`: text, JSON lines, Parquet and Megatron pairs are converted to token Parquet."""
