"""`python -m platform.converge`, a command of `platform.train.converging`."""

from platform.cluster.supervisor import supervise
from platform.train.converging.command import main

if __name__ == "__main__":
    supervise(main)
