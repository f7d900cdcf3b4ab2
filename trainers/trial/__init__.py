"""One trial: the function that Ray Tune runs, its ranks, and the recorder that makes what they measure durable."""
