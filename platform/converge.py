"""`python -m platform.converge`, a command of `platform.train.converging`."""

from platform.common.signals import exit_with
from platform.train.converging.command import main

if __name__ == "__main__":
    exit_with(main)
