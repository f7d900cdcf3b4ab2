"""Measures how long the plan of a million batch points takes, its memory, and when it says that it is at work. Run

python -m benchmarks.plan_points

The space is BLOOM 7b1's with as many sizes of gradient buckets as make up the points.
"""

import argparse
import resource
import subprocess
import sys
import time

import search_spaces

_SPACE = "bloom7b"


def num_points(buckets: int, devices: int) -> int:
    """Returns the batch points of the space with so many sizes of buckets."""
    space = search_spaces.load(_SPACE).with_changes([_change(buckets)])
    return sum(len(candidate.micro_batches) for candidate in space.candidates(devices)[0])


def _change(buckets: int) -> str:
    return f"bucket_mib={','.join(map(str, range(buckets)))}"


def main() -> None:
    """Prints the command's seconds, its memory and its first line of progress."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plan_points",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", type=float, default=1e6, help="batch points at the least (default: %(default)g)")
    parser.add_argument("--gpus", type=int, default=8, help="devices (default: %(default)s)")
    options = parser.parse_args()
    least, more = (num_points(buckets, options.gpus) for buckets in (1, 2))
    buckets = 1 + max(0, -(-(int(options.size) - least) // max(1, more - least)))
    command = [
        sys.executable,
        "-m",
        "platform.plan",
        _SPACE,
        "--cluster",
        f"{options.gpus}xh100",
        "--set",
        _change(buckets),
    ]
    began_s, first_s = time.perf_counter(), None
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            first_s = first_s or time.perf_counter() - began_s
            print(f"  {line.rstrip()[:160]}")
    seconds = time.perf_counter() - began_s
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    progress = "no line of progress" if first_s is None else f"the first line of progress after {first_s:.1f} s"
    print(
        f"{least + (buckets - 1) * (more - least):,} points: {seconds:.1f} s ({used.ru_utime:.1f} s of processor),"
        f" {used.ru_maxrss / 1024:.0f} MiB at most, {progress}, exit code {process.returncode}"
    )


if __name__ == "__main__":
    main()
