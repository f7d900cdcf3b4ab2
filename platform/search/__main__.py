"""Measures which layout trains the space's model fastest here.

Exit codes: 0 found, 1 nothing fits (or --safe refuses the winner), 2 bad input, 3 the cluster is at fault, 4 not
resolved (the machine was disturbed and no winner is named; --resume runs the contenders again), 130 interrupted and
resumable.
"""

import argparse
import contextlib
import dataclasses
import shutil
import textwrap
from collections.abc import Callable, Sequence

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
import search_spaces
from platform.cluster.waiting import WAIT_S
from platform.common.command import exit_code_of
from platform.common.errors import Parser
from platform.common.quantities import amount, duration, positive, whole_number
from platform.common.signals import exit_with
from platform.search.setup.options import SearchOptions, StudyOptions
from platform.study.folder import FOLDER_HELP, default_folder, located, user_path

_count, _whole_count = whole_number(1), whole_number(0)


def parser() -> argparse.ArgumentParser:
    """Returns the command's parser."""
    command_parser = Parser(
        prog="python -m platform.search",
        description="Measures which training layout of a model is fastest on this cluster.",
        epilog="Exit codes: 0 found, 1 nothing fits or --safe refuses the winner, 2 bad input, 3 the cluster is at"
        " fault, 4 not resolved which layout is the fastest, 130 interrupted. Example:"
        " python -m platform.search bloom7b --set seq_len=1024",
    )
    _add_subject(command_parser.add_argument_group("what is searched").add_argument)
    _add_trials(command_parser.add_argument_group("trials").add_argument)
    _add_places(command_parser.add_argument_group("cluster and study").add_argument)
    return command_parser


def _add_subject(add: Callable[..., argparse.Action]) -> None:
    """Adds the options that name what is searched, and for which training."""
    subject = "space's name (--list), path of a space file or config.json, or OWNER/NAME of the hub"
    add("space", nargs="?", help=subject)
    add("--list", action="store_true", help="print the known spaces and end")
    add(
        "--set",
        action="append",
        default=[],
        metavar="AXIS=VALUE[,VALUE]",
        help="values of an axis (docs/reference/axes.md)",
    )
    add("--layout", metavar="FILE", help="measure the one layout of a layout.json")
    add("--data", metavar="PATH", help="Parquet file or folder of token ids (default: the space's data)")
    add("--tokens", type=amount, metavar="N", help="token budget, as in 100B, that days are counted for (default: the"
        " space's)")  # fmt: skip
    price = "price of a device hour, in any currency: reports the cost of the token budget"
    add("--price-per-gpu-h", type=positive, metavar="P", help=price)


def _add_trials(add: Callable[..., argparse.Action]) -> None:
    """Adds the options on how layouts are picked and measured, and for how long."""
    add("--searcher", default="guided", choices=searchers.NAMES, help="how layouts are picked (default: %(default)s)")
    old = (
        "begin with what an old study of the same model taught: its name, the path of its folder, or of one of studies"
    )
    add("--learn-from", metavar="STUDY|FOLDER/", help=old)
    add("--seed", type=_seed, default=0, metavar="N", help="seed of the searcher (default: %(default)s)")
    repeats = "runs in fresh processes of the best three points after the search (default: the space's, mostly 3)"
    add("--repeats", type=_whole_count, metavar="N", help=repeats)
    add(
        "--steps", type=_count, metavar="N", help="time N optimizer steps of every point (default: as many as fill 6 s)"
    )
    whole_help = "time all micro-steps of a step, so that none is derived"
    add("--whole-steps", action="store_true", help=whole_help)
    all_help = "measure the space's named points exactly as they stand, each with its --repeats, cutting none short"
    add("--all", action="store_true", help=all_help)
    profiled = "profile the winner at the end: print the parts of its step, and save a trace"
    add("--profile", action="store_true", help=profiled)
    safe = "train the winner for 50 steps at the end, with a held-out loss and a checkpoint: memory must not grow"
    add("--safe", action="store_true", help=safe)
    add("--max-trials", type=_count, metavar="N", help="search with at most N trials; the final runs come after")
    add("--time-budget", "--time-budget-s", dest="time_budget_s", type=duration, metavar="T", help="stop after"
        " T seconds, or as in 10m or 2h")  # fmt: skip
    add("--gpu-s", type=duration, metavar="T", help="stop after T device seconds, or as in 10m or 2h")


def _add_places(add: Callable[..., argparse.Action]) -> None:
    """Adds the options on where the search runs, where its study is and what is printed."""
    counts = "measure on N devices of the cluster, or (1,2,4) on each of these numbers and draw days against them"
    add("--gpus", type=_counts, default=(), metavar="N[,N]", help=counts)
    add("--device-memory-gib", type=positive, metavar="N", help="let each device have no more than N GiB")
    address_help = (
        'Ray to run on, "local" for one of its own (default: RAY_ADDRESS, else the cluster whose head this is)'
    )
    add("--address", metavar="HOST:PORT", help=address_help)
    wait = "time for GPU nodes that the cluster is still starting to join (default: %(default)g)"
    add("--wait-for-gpus", type=duration, default=WAIT_S, metavar="T", help=wait)
    slow = "probe all devices first (under a minute) and search without the nodes that lag"
    add("--exclude-slow", action="store_true", help=slow)
    add("--studies", type=_folder, default=default_folder(), metavar="DIR", help=FOLDER_HELP)
    add("--name", help="name of the study (default: the space's, with a number)")
    add("--resume", metavar="NAME", help="resume a study (or the path of its folder): run only what is missing")
    auto = "with --name: resume that study where it exists, else begin it, so that one command does both"
    add("--auto-resume", action="store_true", help=auto)
    copied = "copy the journal there as it grows, and --resume from there: a folder, or as s3://BUCKET/PREFIX"
    add("--copy-to", type=_folder, metavar="PLACE", help=copied)
    trust = "use others' studies, whose space file runs as you"
    add("--trust", action="store_true", help=trust)
    add("--dry-run", action="store_true", help="print what would run and what it would cost, and end")
    add("--json", action="store_true", help="print the result as JSON, alone on standard output")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return exit_code_of(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.list:
        spaces = search_spaces.built_in_spaces()
        width = max(len(space.name) for space in spaces)
        columns = shutil.get_terminal_size(fallback=(1000, 24)).columns
        for space in spaces:
            print(textwrap.fill(f"{space.name:{width}}  {space.summary}", columns, subsequent_indent=(width + 2) * " "))
        return 0
    # Takes a second that `--list` and `--help` need not pay.
    from platform.search.session import device_counts, open_study, session

    options = open_study.with_resumption(_options(arguments))
    return device_counts.search(options) if device_counts.is_asked(options) else session.search(options)


def parse(argv: Sequence[str]) -> SearchOptions:
    """Returns the options of these arguments.

    Raises:
        InputError: an argument is unknown, or a value is not one.
    """
    return _options(parser().parse_args(argv))


def _options(arguments: argparse.Namespace) -> SearchOptions:
    values = vars(arguments)
    values["set"] = tuple(values["set"])
    of_study = {field.name: values[field.name] for field in dataclasses.fields(StudyOptions)}
    of_command = {
        field.name: values[field.name] for field in dataclasses.fields(SearchOptions) if field.name != "study"
    }
    studies = user_path(arguments.studies)
    if arguments.resume is not None:
        studies, of_command["resume"] = located(studies, arguments.resume)
    of_command["studies"] = studies.absolute()
    return SearchOptions(study=StudyOptions(**of_study).with_absolute_paths(), **of_command)


def _counts(text: str) -> tuple[int, ...]:
    """Returns the numbers of devices, ascending, each once."""
    with contextlib.suppress(ValueError):
        values = sorted({int(part) for part in text.split(",")})
        if values[0] >= 1:
            return tuple(values)
    raise argparse.ArgumentTypeError(f"must be whole numbers of at least 1, as 4 or 1,2,4, got {text!r}")


def _seed(text: str) -> int:
    value = _whole_count(text)
    if value < 2**32:  # NumPy's generators take no more
        return value
    raise argparse.ArgumentTypeError(f"must be below 2^32, got {text!r}")


def _folder(text: str) -> str:
    if text.strip() and "\0" not in text:
        return text
    raise argparse.ArgumentTypeError(f"must be the path of a folder, got {text!r}")


if __name__ == "__main__":
    exit_with(main)
