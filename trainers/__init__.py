"""One trial, on the workers: all code that Ray ships to another process. `spec` holds the values that all packages
share.

Importing `spec` and `records` costs no torch; no module here imports `search_spaces` or `platform`.
"""
