"""The options of `platform.search` as frozen values: those that a study keeps, and those of one command."""

import argparse
import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
import search_spaces
from platform.cluster.waiting import WAIT_S
from platform.common.errors import InputError
from platform.common.options import address_field, argument, config_field, json_field, option, setting
from platform.common.quantities import amount, duration, length, positive, whole_number
from platform.study.bucket import is_address
from platform.study.folder import is_path, located, studies_field, user_path
from platform.tracking.wandb_option import wandb_field
from platform.train.data_path import data_field, data_path
from trainers.records.journal import StudyHeader
from trainers.spec.codec import from_json
from trainers.spec.workload import holes_in

_BUILT_IN = frozenset((*search_spaces.names(), *search_spaces.reference.names()))
SideBySide = Literal["off", "auto", "on"]
"""How trials run: "off": one at a time; "auto": on whole nodes each; "on": also on disjoint devices of a node."""
_SUBJECT, _TRIALS, _PLACES = "what is searched", "trials", "cluster and study"


def _counts(text: str) -> tuple[int, ...]:
    """Returns the distinct numbers of devices, ascending."""
    with contextlib.suppress(ValueError):
        values = sorted({int(part) for part in text.split(",")})
        if values[0] >= 1:
            return tuple(values)
    raise argparse.ArgumentTypeError(f"must be whole numbers of at least 1, as 4 or 1,2,4, got {text!r}")


def _seed(text: str) -> int:
    value = whole_number(0)(text)
    if value < 2**32:  # NumPy's generators take no more
        return value
    raise argparse.ArgumentTypeError(f"must be below 2^32, got {text!r}")


def _folder(text: str) -> str:
    if text.strip() and "\0" not in text:
        return text
    raise argparse.ArgumentTypeError(f"must be the path of a folder, got {text!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StudyOptions:
    """Options that define a study; a resumed one keeps all of them. Fields are named as their options are."""

    space: str | None = argument(
        None,
        nargs="?",
        group=_SUBJECT,
        about="name of a space (--list), path of a space file or config.json, or OWNER/NAME of the hub",
    )
    further: tuple[str, ...] = argument(
        (),
        nargs="*",
        metavar="SPACE",
        group=_SUBJECT,
        about="further spaces: each has a study of its own, and all share the cluster",
    )
    set: tuple[str, ...] = option(
        (),
        repeated=True,
        metavar="AXIS=VALUE[,VALUE]",
        group=_SUBJECT,
        about="values of an axis (docs/reference/axes.md)",
    )
    command: tuple[str, ...] = setting((), about="the user's own training, whose holes are the axes, as behind --")
    build: str | None = option(
        None,
        metavar="FILE.py:NAME",
        group=_SUBJECT,
        about="search the training that this function builds (docs/your-function.md)",
    )
    folder: str = setting("", about="folder in which the command or the function runs")
    environment: tuple[str, ...] = setting((), about="NAME=VALUE of environment variables that it gets")
    without: tuple[str, ...] = setting((), about="combinations of its axes' values that are left out, in JSON")
    model: str | None = setting(None, about="config.json or OWNER/NAME of the hub whose predictions order its trials")
    means: tuple[str, ...] = setting((), about="values of layout and recipe axes that values of its axes mean")
    recheck: str | None = setting(None, about="folder of a study whose winner and runner-up alone run again")
    tokens_per_step: int | None = option(
        None,
        read=whole_number(1),
        metavar="N",
        group=_SUBJECT,
        about="tokens of an optimizer step over all devices, with --build or a command",
    )
    seq_len: int | None = option(
        None,
        read=length,
        metavar="N",
        group=_SUBJECT,
        about="tokens of a sequence, with --build or a command",
    )
    step_line: str | None = option(
        None,
        metavar="REGEX",
        group=_SUBJECT,
        about="pattern of the lines that a command prints for its steps (docs/your-training.md)",
    )
    layout: str | None = option(None, metavar="FILE", group=_SUBJECT, about="measure only the layout of a layout.json")
    data: str | None = data_field(group=_SUBJECT)
    tokens: float | None = option(
        None,
        read=amount,
        metavar="N",
        group=_SUBJECT,
        about="tokens of the training, as in 100B, for which days are reported (default: the space's)",
    )
    price_per_gpu_h: float | None = option(
        None,
        read=positive,
        metavar="P",
        group=_SUBJECT,
        about="price of a device hour, to report the cost of --tokens",
    )
    searcher: str = option(
        "guided", choices=searchers.NAMES, group=_TRIALS, about="how layouts are chosen (default: %(default)s)"
    )
    learn_from: str | None = option(
        None,
        metavar="STUDY|FOLDER/",
        group=_TRIALS,
        about="correct predictions by an old study of the same model: its name or folder; or by a folder or bucket of"
        " studies",
    )
    seed: int = option(0, read=_seed, metavar="N", group=_TRIALS, about="seed of the searcher (default: %(default)s)")
    repeats: int | None = option(
        None,
        read=whole_number(0),
        metavar="N",
        group=_TRIALS,
        about="runs in fresh processes of the best three points after the search (default: the space's)",
    )
    steps: int | None = option(
        None,
        read=whole_number(1),
        metavar="N",
        group=_TRIALS,
        about="time N optimizer steps of every point (default: as many as fill 6 s, of a command 10 s)",
    )
    whole_steps: bool = option(
        False, group=_TRIALS, about="time all micro-steps of each step, in place of deriving long steps from a few"
    )
    all: bool = option(
        False,
        group=_TRIALS,
        about="measure all named points of the space, each with --repeats runs and none stopped early",
    )
    gpus: tuple[int, ...] = option(
        (),
        read=_counts,
        metavar="N[,N]",
        group=_PLACES,
        about="measure on N devices, or (1,2,4) on each of these numbers and draw days against them",
    )
    device_memory_gib: float | None = option(
        None, read=positive, metavar="N", group=_PLACES, about="limit the memory of each device to N GiB"
    )

    @property
    def is_own(self) -> bool:
        """Whether a user's own training is searched, and no space."""
        return bool(self.command or self.build)

    def with_absolute_paths(self) -> "StudyOptions":
        """Returns the options with absolute paths, valid in any working folder."""
        space, old = self.space and _located_space(self.space), self.learn_from
        model = self.model and _located_space(self.model)
        further = tuple(map(_located_space, self.further))
        if old is not None and is_path(old) and not is_address(old):
            old = _absolute(old)
        layout, data = self.layout and _absolute(self.layout), self.data and data_path(self.data)
        recheck = self.recheck and _absolute(self.recheck)
        return dataclasses.replace(
            self, space=space, further=further, model=model, learn_from=old, layout=layout, data=data, recheck=recheck
        )

    def files(self) -> tuple[Path, ...]:
        """Returns the file of the space, which may be code, and that of the model that stands in for a training; none
        for built-in spaces and models of the hub.
        """
        names = (name for name in (self.space, self.model) if name is not None and name not in _BUILT_IN)
        return tuple(user_path(name) for name in names if not search_spaces.is_of_hub(name))

    def differences(self, stored: "StudyOptions") -> list[str]:
        """Returns the names, as typed, of options given here that differ from those `stored` with the study."""
        default = StudyOptions()
        names = (field.name for field in dataclasses.fields(self))
        changed = [name for name in names if getattr(self, name) not in (getattr(default, name), getattr(stored, name))]
        # Without a requested revision, the stored one is kept.
        if "space" in changed and str(stored.space).partition("@")[0] == self.space:
            changed.remove("space")
        words = {
            "space": "the space",
            "further": "the spaces",
            "command": "the command",
            "folder": "the folder of the command or function",
        }
        words |= {name: f"the {name} of its file" for name in ("environment", "without", "model", "means")}
        return [words.get(name, "--" + name.replace("_", "-")) for name in changed]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """All options of one command. Fields are named as their options are."""

    study: StudyOptions = dataclasses.field(default_factory=StudyOptions)
    config: Path | None = config_field(group=_SUBJECT)
    list: bool = option(False, group=_SUBJECT, about="print the built-in spaces and end", in_files="never")
    profile: bool = option(
        False,
        group=_TRIALS,
        about="profile the winner at the end, to show the parts of its step and keep a trace",
    )
    safe: bool = option(
        False,
        group=_TRIALS,
        about="train the winner for 51 steps at the end, with held-out loss and checkpoint; refuse it if memory grows",
    )
    max_trials: int | None = option(
        None,
        read=whole_number(1),
        metavar="N",
        group=_TRIALS,
        about="at most N trials before the final runs",
    )
    time_budget_s: float | None = option(
        None,
        names=("--time-budget", "--time-budget-s"),
        read=duration,
        metavar="T",
        group=_TRIALS,
        about="stop after T seconds, or as in 10m",
    )
    gpu_s: float | None = option(
        None, read=duration, metavar="T", group=_TRIALS, about="stop after T device seconds, or as in 10m"
    )
    side_by_side: SideBySide = option(
        "auto",
        group=_PLACES,
        about="trials at the same time: off: one; auto: each on whole nodes of its own, as many as the cluster has; on:"
        " also several on one node (default: %(default)s)",
    )
    address: str | None = address_field(group=_PLACES)
    wait_for_gpus: float = option(
        WAIT_S,
        read=duration,
        metavar="T",
        group=_PLACES,
        about="seconds (or 20m) to wait for GPU nodes that are still starting (default: %(default)g)",
    )
    exclude_slow: bool = option(
        False,
        group=_PLACES,
        about="probe all devices first and leave out nodes that lag",
    )
    studies: Path = studies_field(read=_folder, then=user_path, group=_PLACES)
    name: str | None = option(None, group=_PLACES, about="name of the study (default: the space's, with a number)")
    resume: str | None = option(
        None,
        metavar="NAME",
        group=_PLACES,
        about="resume a study (or the path of its folder): run only what is missing",
    )
    auto_resume: bool = option(
        False,
        group=_PLACES,
        about="with --name: resume that study where it exists, else begin it",
    )
    copy_to: str | None = option(
        None,
        read=_folder,
        metavar="PLACE",
        group=_PLACES,
        about="copy the journal to PLACE as it grows, and --resume from it: a folder or s3://BUCKET/PREFIX",
    )
    wandb: str | None = wandb_field(group=_PLACES)
    trust: bool = option(
        False,
        in_files="never",
        group=_PLACES,
        about="use other users' studies, whose space file or command runs as you",
    )
    dry_run: bool = option(False, group=_PLACES, about="print the layouts that would run and their cost, and end")
    json: bool = json_field(group=_PLACES)

    def located(self) -> "SearchOptions":
        """Returns the options with absolute paths; `resume` becomes a name in `studies`."""
        studies, resume = self.studies, self.resume
        if resume is not None:
            studies, resume = located(studies, resume)
        study = self.study.with_absolute_paths()
        return dataclasses.replace(self, study=study, studies=studies.absolute(), resume=resume)


def with_command(options: SearchOptions, command: Sequence[str]) -> SearchOptions:
    """Returns the options with the words after `--` as the command to search.

    A command or function runs in the working folder unless a file named another one. Unchanged without either.

    Raises:
        InputError: two trainings are given, or several numbers of devices and the command has no hole for them.
    """
    study = options.study
    if study.is_own and command:
        raise InputError("a command behind -- and --build, or a training's file, name two trainings: leave out one")
    if study.build:
        study = dataclasses.replace(study, build=os.path.normpath(study.build))
    study = dataclasses.replace(study, command=tuple(command) or study.command)
    if not study.is_own:
        return options
    holes = {match[1] for word in (*study.command, *study.environment) for match in holes_in(word)}
    if study.command and len(study.gpus) > 1 and not holes & {"gpus", "world_size"}:
        raise InputError(
            f"--gpus {','.join(map(str, study.gpus))} changes the number of devices, and the command has no hole"
            " {gpus} for it, as in --nproc-per-node '{gpus}'"
        )
    folder = _absolute(study.folder) if study.folder else str(Path.cwd())
    return dataclasses.replace(options, study=dataclasses.replace(study, folder=folder))


def options_of(header: StudyHeader) -> StudyOptions:
    """Returns the options with which the study of this first line began.

    Raises:
        InputError: this version does not know one of them.
    """
    return read_options(header.options)


def read_options(stored: Mapping[str, Any]) -> StudyOptions:
    """Returns the options `stored` in a file.

    Raises:
        InputError: this version does not know one of them.
    """
    try:
        return from_json(StudyOptions, stored)
    except ValueError as error:
        raise InputError(f"the study was begun with options that this version cannot read: {error}") from error


def _located_space(space: str) -> str:
    """Returns the space with an absolute path. A built-in one comes before any file or folder of its name."""
    return space if space in _BUILT_IN or not user_path(space).exists() else _absolute(space)


def _absolute(path: str) -> str:
    return str(user_path(path).absolute())
