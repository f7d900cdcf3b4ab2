"""What is written down and read back: jobs, measurements, the lines of journals and of trainings. No torch, no Ray."""
