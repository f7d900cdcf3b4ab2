"""Measures through Ray Train, in under a minute, what this cluster's devices and links achieve.

It times matrix products by size and precision and copies on every device, and all-reduce, all-gather and
reduce-scatter inside and between nodes by size; it measures the memory of a bare context, and names what lags. The
result is stored under the cluster's fingerprint, for `platform.plan --cluster ray` and `platform.search`.

Exit codes: 0, 2 bad input, 3 the cluster is at fault.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from platform.cluster import connection as clusters
from platform.cluster.probing import probe_store
from platform.cluster.probing.probe_run import measure
from platform.cluster.probing.probe_tables import show, to_object
from platform.common.command import exit_code_of
from platform.common.errors import Parser
from platform.study.folder import FOLDER_HELP, default_folder, user_path


def parser() -> argparse.ArgumentParser:
    """Returns the command's parser."""
    command_parser = Parser(
        prog="python -m platform.probe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: python -m platform.probe --json > probe.json",
    )
    address_help = (
        'Ray to run on, "local" for one of its own (default: RAY_ADDRESS, else the cluster whose head this is)'
    )
    command_parser.add_argument("--address", metavar="HOST:PORT", help=address_help)
    command_parser.add_argument("--studies", type=Path, default=Path(default_folder()), metavar="DIR", help=FOLDER_HELP)
    command_parser.add_argument(
        "--json", action="store_true", help="print the result as JSON, alone on standard output"
    )
    return command_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return exit_code_of(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    began_s = time.monotonic()
    options = parser().parse_args(argv)
    studies = user_path(options.studies)
    with clusters.connected(options.address) as handle:
        probe = measure(handle, began_s)
    path = probe_store.write(studies, probe)
    if options.json:
        print(json.dumps(to_object(probe, path), indent=1))
    else:
        show(probe, path, Console(highlight=False, markup=False, emoji=False))
    return 0
