"""One trial, on the workers: all that Ray ships to another process, and the value types every floor speaks in.

Importing the value types costs no torch; it imports neither `search_spaces` nor `platform`.
"""
