"""One trial, on the workers: all that Ray ships to another process. `spec` holds what every floor speaks in.

Importing `spec` and `records` costs no torch; no module here imports `search_spaces` or `platform`.
"""
