"""The results of a probe of the real cluster: where they are stored, what lags, how they are shown."""
