"""`python -m platform.probe`, a command of `platform.cluster.probing`."""

from platform.cluster.probing.command import main
from platform.common.signals import exit_with

if __name__ == "__main__":
    exit_with(main)
