"""`python -m platform.replay`, a command of `platform.validate.replaying`."""

from platform.common.signals import exit_with
from platform.validate.replaying.command import main

if __name__ == "__main__":
    exit_with(main)
