"""One trial: the function that Ray Tune runs, its ranks, and the recorder that writes their measurements to disk."""
