"""`python -m platform.recheck`, a command of `platform.search.rechecking`."""

from platform.common.signals import exit_with
from platform.search.rechecking.command import main

if __name__ == "__main__":
    exit_with(main)
