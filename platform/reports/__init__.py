"""What a person or another program gets to see of a study. Everything here is made from the journal alone."""
