"""Measures how long the report of a study takes and its memory, without MLflow, and its page, from the journal to the
file. From the checkout:

python -m benchmarks.report_speed --size 20000

The journal is that of `benchmarks.large_study`, made up, with 1,000 measured batch points, without what was skipped.

Its figures: docs/lab/tools.csv#report-20000.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.large_study import NAME, write_study
from platform.report.html.page import write_page
from platform.study.result.result import StudyResult
from platform.study.study import read


def main() -> None:
    """Prints both times and the page's size."""
    command_parser = argparse.ArgumentParser(prog="python -m benchmarks.report_speed", description=__doc__)
    command_parser.add_argument("--size", type=int, default=1000, help="measured batch points (default: %(default)s)")
    options = command_parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        studies = Path(folder)
        # In another process, and the command first: Linux counts in a child's peak what its parent had in memory.
        maker = multiprocessing.get_context("spawn").Process(target=_make_study, args=(studies, options.size))
        maker.start()
        maker.join()
        page = studies / "report.html"
        command = [sys.executable, "-m", "platform.report", NAME, "--studies", folder]
        began_s = time.perf_counter()
        process = subprocess.Popen([*command, "--no-mlflow"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        command_s, command_cpu_s = time.perf_counter() - began_s, used.ru_utime + used.ru_stime
        peak_mib = used.ru_maxrss / 1024
        if status:
            raise SystemExit(f"the command ended with status {status}")
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        write_page(page, [StudyResult.of(read(studies / NAME)[0])], [studies / NAME])
        page_s, page_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        mib = page.stat().st_size / 2**20
    print(f"{options.size:,} measurements: the page {page_s:.1f} s ({page_cpu_s:.1f} s of processor), {mib:.2f} MiB")
    print(f"the command with its table, pictures and files {command_s:.1f} s ({command_cpu_s:.1f} s of processor),"
          f" {peak_mib:.0f} MiB at most")  # fmt: skip


def _make_study(studies: Path, size: int) -> None:
    write_study(studies, size)
    journal = studies / NAME / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"outcome": "skipped"' not in line))


if __name__ == "__main__":
    main()
