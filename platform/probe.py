"""`python -m platform.probe`, a command of `platform.cluster.probing`."""

from platform.cluster.probing.command import main
from platform.cluster.supervisor import supervise

if __name__ == "__main__":
    supervise(main)
