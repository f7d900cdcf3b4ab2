"""`python -m platform.recheck`, a command of `platform.search.rechecking`."""

from platform.cluster.supervisor import supervise
from platform.search.rechecking.command import main

if __name__ == "__main__":
    supervise(main)
