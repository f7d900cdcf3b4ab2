"""`python -m platform.export`, a command of `platform.train.exporting`."""

from platform.common.signals import exit_with
from platform.train.exporting.command import main

if __name__ == "__main__":
    exit_with(main)
