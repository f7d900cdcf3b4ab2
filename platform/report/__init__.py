"""Reports on a study for people and other programs, all made from the journal alone."""
