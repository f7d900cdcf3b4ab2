"""One trial, on the workers: all that Ray ships to another process. `values` holds what every floor speaks in.

Importing the values costs no torch; it imports neither `search_spaces` nor `platform`.
"""
