"""The options of a search of the user's own command or function: required and refused ones."""

import dataclasses
from pathlib import Path

from platform.common.errors import InputError
from platform.search.setup.options import SearchOptions, StudyOptions
from search_spaces.command import GRAD_ACCUM, holes_of, space_of_command
from search_spaces.function import space_of_function
from search_spaces.space import Space

ONLY_OF_COMMANDS = ("tokens_per_step", "seq_len", "step_line", "model", "means")
"""Options that only a user's own training has."""
_OF_MODELS = {
    "space": "names another subject",
    "further": "name other subjects",
    "set": "sets axes of this project's models; those of a command are its holes",
    "layout": "is of this project's models",
    "data": "is of this project's models; a command reads its own",
    "learn_from": "teaches predictions, and a command has none",
    "whole_steps": "is how a command is timed anyway",
    "all": "measures a space's named points",
    "device_memory_gib": "limits this project's own allocator",
}
"""Options of a study that a command does not take, with the reason."""
_ENDINGS = {"profile": "profiles steps of this project's processes", "safe": "trains a model of this project's"}
_OF_FUNCTIONS = {"set", "device_memory_gib", "profile"}
"""Of these, the options that a function takes, because it runs in this project's processes."""


def option_name(field: str) -> str:
    """Returns an option as a user types it."""
    words = {"space": "the space", "further": "further spaces", "model": "model", "means": "means"}
    return words.get(field, f"--{field.replace('_', '-')}")


def check_options(options: SearchOptions) -> None:
    """Checks that no option is given that a command or function does not have, and none is missing.

    Raises:
        InputError: an option is refused or missing.
    """
    study, default = options.study, StudyOptions()
    reasons = {name: why for name, why in _OF_MODELS.items() if getattr(study, name) != getattr(default, name)}
    reasons |= {name: why for name, why in _ENDINGS.items() if getattr(options, name)}
    if study.build:
        reasons = {name: why.replace("a command", "a function") for name, why in reasons.items()
                   if name not in _OF_FUNCTIONS}  # fmt: skip
        reasons |= {"step_line": "finds the steps of a command"} if study.step_line is not None else {}
    kind = "--build" if study.build else "a command"
    for name, why in reasons.items():
        raise InputError(f"{option_name(name)} {why}: leave it out beside {kind}")
    if study.tokens_per_step is None:
        raise InputError(f"{kind} needs --tokens-per-step N, the tokens of an optimizer step over all devices, which"
                         " are the same for all of its points")  # fmt: skip
    if study.command and study.seq_len is None:
        _check_can_learn_length(options)


def _check_can_learn_length(options: SearchOptions) -> None:
    """Checks that the first step of a command without a sequence length can show it.

    Raises:
        InputError: it cannot; the text says why.
    """
    study = options.study
    if GRAD_ACCUM not in _holes(study):
        raise InputError("the command has no hole {grad_accum}, so that its first step does not show the length of a"
                         " sequence: give --seq-len N, or the hole")  # fmt: skip
    if study.step_line is not None and "(?P<tokens>" not in study.step_line:
        raise InputError("the pattern of --step-line has no group (?P<tokens>...) for the length of a sequence:"
                         " give --seq-len N, or the group")  # fmt: skip
    if options.dry_run:
        raise InputError("a first run shows the length of a sequence, and --dry-run runs nothing: give --seq-len N")


def _holes(study: StudyOptions) -> dict[str, tuple[str, ...]]:
    try:
        return holes_of(study.command, study.environment)
    except ValueError as error:
        raise InputError(str(error)) from error


def space_of(study: StudyOptions) -> Space:
    """Returns the space of the options' command or function. Until a command's length is known, a sequence is one
    token.

    Raises:
        ValueError: see `search_spaces.command.space_of_command` and `search_spaces.function.space_of_function`.
    """
    assert study.tokens_per_step is not None, "checked before"
    if study.build:
        return space_of_function(
            study.build,
            study.set,
            folder=Path(study.folder),
            tokens_per_step=study.tokens_per_step,
            seq_len=study.seq_len or 1,
            environment=study.environment,
            without=study.without,
        )
    return space_of_command(
        study.command,
        folder=Path(study.folder),
        tokens_per_step=study.tokens_per_step,
        seq_len=study.seq_len or 1,
        step_line=study.step_line or "",
        environment=study.environment,
        without=study.without,
    )


def with_length(study: StudyOptions, seq_len: int) -> StudyOptions:
    return dataclasses.replace(study, seq_len=seq_len)
