"""A study's folder: the journal, what it says, the lock, the exports."""
