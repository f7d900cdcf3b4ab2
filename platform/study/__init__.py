"""A study's folder: journal, history, lock and exports."""
