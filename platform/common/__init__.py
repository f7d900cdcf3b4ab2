"""What every room may use: errors, signals, figures as text, one line on standard error, this checkout's commit."""
