"""`python -m platform.probe`, a command of `platform.cluster.probing`."""

from platform.cluster.probing.command import main, parser
from platform.common.signals import exit_with

__all__ = ["main", "parser"]

if __name__ == "__main__":
    exit_with(main)
