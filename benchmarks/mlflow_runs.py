"""Measures how long MLflow's runs of a large study take, and of a second look that finds all of them there. Run

python -m benchmarks.mlflow_runs --size 5000

The study is that of `benchmarks.large_study`, made up; the store is a new SQLite file.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.large_study import NAME, write_study
from platform.study.result.result import StudyResult
from platform.study.study import read
from platform.tracking.mirror import Mirror
from platform.tracking.uri import default_uri

_LONGEST_S = 24 * 3600.0


def main() -> None:
    """Prints both times and the peak of memory."""
    command_parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mlflow_runs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command_parser.add_argument("--size", type=int, default=5000, help="measured batch points (default: %(default)s)")
    options = command_parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        studies = Path(folder)
        write_study(studies, options.size)
        result = StudyResult.of(read(studies / NAME)[0])
        for words in ("the first time", "again"):
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            reason = Mirror(studies / NAME, default_uri(studies)).start().close(_LONGEST_S, result)
            seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
            print(f"{options.size:,} measurements, {words}: {seconds:.1f} s ({cpu_s:.1f} s of processor) {reason}")
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{peak_mib:.0f} MiB at most, a store of {(studies / 'mlflow.db').stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
