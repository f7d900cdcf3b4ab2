"""Values that are written down and read back: jobs, measurements, lines of journals and trainings. Imports no torch, no
Ray.
"""
