"""Values that are written down and read back: jobs, measurements, lines of journals and trainings. No torch, no Ray."""
