"""Injects random faults into resumed searches or trainings on CPU workers, and counts what was lost, run twice or left
behind. Run

python -m benchmarks.soak [searches | trainings] --minutes 60 [--seed 0] [--faults "worker killed,disk full"]

Faults come in a random order, each once before any comes again. Wanted are zeros: exit code 0, else 1. A full disk and
a read-only folder need root, who mounts a small disk; the clock jumps for Python in a search's processes alone
(`benchmarks/soak/clock.py`).

Its figures: docs/lab/faults.csv#soak-searches, docs/lab/faults.csv#soak-trainings.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.soak import faults, training_faults
from benchmarks.soak.searches import SearchSoak
from benchmarks.soak.trainings import TrainingSoak

_SOAKS = {"searches": (SearchSoak, tuple(faults.FAULTS)), "trainings": (TrainingSoak, tuple(training_faults.FAULTS))}


def main(argv: Sequence[str] | None = None) -> int:
    """Soaks for the given time, prints the tally; the exit code is 1 unless nothing was found."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subject", nargs="?", choices=[*_SOAKS], default="searches")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no further fault is begun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", metavar="NAMES", help="of the subject's faults these alone, with commas")
    options = parser.parse_args(argv)
    soak_type, all_names = _SOAKS[options.subject]
    names = all_names if options.faults is None else options.faults.split(",")
    if unknown := [name for name in names if name not in all_names]:
        parser.error(f"--faults knows {', '.join(all_names)}; got {unknown[0]!r}")
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))  # the path of Ray's sockets is short
    began_s = time.monotonic()
    soak = soak_type(folder, random.Random(options.seed), names)
    try:
        soak.run(60 * options.minutes)
    finally:
        soak.end()
        minutes = (time.monotonic() - began_s) / 60
        print(f"{minutes:.1f} minutes, seed {options.seed}, {os.cpu_count()} cores\n{soak.tally}")
    if soak.tally.is_clean:
        shutil.rmtree(folder)
    else:
        print(f"logs and {options.subject} are kept in {folder}")
    return 0 if soak.tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
