"""What a probe of the real cluster found: where it is kept, what lags, how it is shown."""
