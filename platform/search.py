"""`python -m platform.search SPACE`: measures which layout trains the space's model fastest here.

Exit codes: 0 found, 1 nothing fits, 2 bad input, 3 the cluster is at fault, 130 interrupted and resumable.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import search_spaces
from platform import commit, searchers
from platform.cluster import Place, connected
from platform.cost_model.memory import lower_bound_gib
from platform.errors import ClusterError, InputError
from platform.loop import Budget, Loop, Settings
from platform.mirror import Mirror, check_uri, default_uri
from platform.reports import progress, summary
from platform.reports.files import read_layout, write_results
from platform.study.history import History
from platform.study.study import Study, fresh_name
from search_spaces.space import Candidate, Rejected, Space
from trainers.cluster import Cluster
from trainers.job import Timing
from trainers.journal import End, Measured, Resume, StudyHeader
from trainers.layout import BatchPoint
from trainers.measurement import Measurement, Outcome
from trainers.support import refusal


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        prog="python -m platform.search",
        description="Measures which training layout of a model is fastest on this cluster.",
        epilog="Example: python -m platform.search bloom7b --set seq_len=1024 --time-budget-s 3600",
    )
    add = made.add_argument
    add("space", nargs="?", help="name of a space (see --list), path of a space file or of a transformers config.json")
    add("--list", action="store_true", help="print the known spaces and end")
    add("--set", action="append", default=[], metavar="AXIS=VALUE[,VALUE]", help="values of a layout or recipe axis")
    add("--layout", metavar="FILE", type=Path, help="measure the one layout of a layout.json")
    add("--searcher", default="sweep", choices=searchers.NAMES, help="how layouts are picked (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of the searcher (default: %(default)s)")
    add("--max-trials", type=_positive_int, metavar="N", help="stop after N trials")
    add("--time-budget-s", type=_positive, metavar="S", help="stop after S seconds")
    add("--gpu-s", type=_positive, metavar="S", help="stop after S device seconds")
    add("--device-memory-gib", type=_positive, metavar="N", help="let each device have no more than N GiB")
    add("--tokens", type=_positive, metavar="N", help="token budget that days are counted for (default: the space's)")
    add("--data", type=Path, metavar="PATH", help="Parquet file or folder of token ids (default: the space's)")
    add("--address", metavar="HOST:PORT", help='Ray to run on; "local" starts one here (default: RAY_ADDRESS, a head)')
    add("--studies", type=Path, default=Path("studies"), metavar="DIR", help="where studies are kept (default: studies)")
    add("--name", help="name of the study (default: the space's with a number)")
    add("--resume", metavar="NAME", help="go on with a study: run only what is missing")
    add("--dry-run", action="store_true", help="print what would run and what it would cost, and end")
    add("--json", action="store_true", help="print the result as JSON, alone on standard output")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(arguments)
    try:
        if options.list:
            for space in search_spaces.known():
                print(f"{space.name:12} {space.summary}")
            return 0
        return _search(options, arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ClusterError as error:
        print(f"cluster fault: {error}", file=sys.stderr)
        return 3


def _search(options: argparse.Namespace, argv: list[str]) -> int:
    studies: Path = options.studies.expanduser().absolute()
    uri = os.environ.get("MLFLOW_TRACKING_URI") or default_uri(studies)
    check_uri(uri)
    study, history = None, History()
    if options.resume:
        study, history, rejected = Study.resume(studies, options.resume)
        if rejected:
            progress.say(rejected)
    try:
        space = _space(options, history)
        if study is None:
            name = options.name or fresh_name(studies, space.name)
            Study.check_free(studies, name)
        with connected(options.address, cpu_workers=_workers(space)) as place:
            if place.has_gpus or space.miniature is None:
                chosen = space
            else:
                chosen = space.miniature
                progress.say(
                    f"{space.name} cannot be measured here: no node has a GPU. The same search runs for real on"
                    f" {chosen.recipe.model.name}, a miniature of the same architecture, on"
                    f" {place.cluster.num_devices} CPU workers."
                )
            raise SystemExit
    finally:
        if study is not None:
            study.close()


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value
