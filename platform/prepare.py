"""`python -m platform.prepare`, a command of `platform.train.preparing`."""

from platform.common.signals import exit_with
from platform.train.preparing.command import main

if __name__ == "__main__":
    exit_with(main)
