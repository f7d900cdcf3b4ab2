"""What may be tried: one file a model family, each a function that returns a frozen `Space`."""
