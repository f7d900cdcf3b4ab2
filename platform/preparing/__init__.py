"""Text, JSON lines, Parquet and Megatron pairs made into token Parquet."""
