"""A user's own training in a YAML file: a command or a function, with its axes and excluded combinations."""

import argparse
import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.common.config_file import load_yaml
from platform.common.errors import InputError
from platform.common.quantities import length, whole_number
from platform.search.setup.options import SearchOptions, StudyOptions
from platform.study.folder import user_path
from search_spaces import foreign
from search_spaces.candidate import OWN
from trainers.spec.codec import shortened
from trainers.spec.workload import flags_text, text_of, with_holes

SUFFIXES = (".yaml", ".yml")
_KEYS = (
    "command", "build", "axes", "without", "environment", "folder", "tokens_per_step", "seq_len", "step_line", "model",
    "means",
)  # fmt: skip
_NOTHING = (None, "", "~", "null", "Null", "NULL")
"""Values of a key that is there without one, as YAML spells it."""


def with_training_file(options: SearchOptions) -> SearchOptions:
    """Returns the options with the content of the YAML file that they name as space, as if it had been typed.

    Typed options take precedence over the file's. Unchanged if the space is no YAML file.

    Raises:
        InputError: the file cannot be read or has an invalid entry.
    """
    space = options.study.space
    if space is None or not space.endswith(SUFFIXES):
        return options
    path = user_path(space)
    try:
        content = _read(path)
        _check_keys(content, path)
        given = {key: value for key, value in content.items() if value not in _NOTHING}
        return dataclasses.replace(options, study=_study_of(given, path, options.study))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _read(path: Path) -> Mapping[str, Any]:
    """Returns the file's content. A command gets its words as they are written, a function values of YAML's types."""
    content = load_yaml(path)
    if not isinstance(content, Mapping):
        raise ValueError(f"a training is a mapping with {', '.join(_KEYS)}, got {shortened(content)}")
    return load_yaml(path, typed=True) if content.get("build") not in _NOTHING else content


def _check_keys(content: Mapping[str, Any], path: Path) -> None:
    if unknown := [str(key) for key in content if key not in _KEYS]:
        if of_others := foreign.refusal(path, content.keys()):
            raise InputError(of_others)
        raise ValueError(f"it has an unknown key {unknown[0]}: there are {', '.join(_KEYS)}")


def _study_of(content: Mapping[str, Any], path: Path, typed: StudyOptions) -> StudyOptions:
    command, build = content.get("command"), content.get("build")
    if (command is None) == (build is None):
        raise ValueError("a training has either a command or a build")
    readers = {"tokens_per_step": whole_number(1), "seq_len": length}
    numbers = {key: _number(content, key, read) for key, read in readers.items()}
    axes = {name: _texts(name, values) for name, values in _mapping(content, "axes").items()}
    words = _words(command) if command is not None else []
    variables = [f"{name}={_text(value)}" for name, value in _mapping(content, "environment").items()]
    folder = (path.parent / user_path(str(content.get("folder", ".")))).absolute()
    filled = words if build is not None else list(_with_values([*words, *variables], axes))
    return dataclasses.replace(
        typed,
        space=None,
        command=tuple(filled[: len(words)]),
        build=None if build is None else str(build),
        set=() if build is None else (*(f"{name}={','.join(values)}" for name, values in axes.items()), *typed.set),
        folder=str(folder),
        tokens_per_step=typed.tokens_per_step or numbers["tokens_per_step"],
        seq_len=typed.seq_len or numbers["seq_len"],
        step_line=typed.step_line or content.get("step_line"),
        environment=tuple(filled[len(words) :]) if build is None else tuple(variables),
        without=tuple(_without(content, axes)),
        model=_model(content, path.parent),
        means=tuple(_means(content)),
    )


def _words(command: Any) -> list[str]:
    if isinstance(command, str):
        return shlex.split(command)
    if isinstance(command, Sequence) and command:
        return [_text(word) for word in command]  # type: ignore[reportUnknownVariableType]
    raise ValueError(f"a command is a text or a list of words, got {shortened(command)}")


def _with_values(words: Sequence[str], axes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yields the words with each axis' values inserted in its first hole."""
    left = dict(axes)

    def with_values(hole: Any) -> str:
        values = left.pop(hole[1], None) if hole[2] is None else None
        return hole[0] if values is None else f"{{{hole[1]}={','.join(values)}}}"

    filled = [with_holes(word, with_values) for word in words]
    if left:
        raise ValueError(f"axis {next(iter(left))} has no hole in the command: write {{{next(iter(left))}}}")
    yield from filled


def _mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key) or {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):  # type: ignore[reportUnknownVariableType]
        raise ValueError(f"{key} is a mapping of names, got {shortened(value)}")
    return value  # type: ignore[reportUnknownVariableType]


def _texts(name: str, values: Any) -> tuple[str, ...]:
    texts = tuple(map(_text, values)) if isinstance(values, (list, tuple)) else (_text(values),)  # type: ignore[reportUnknownArgumentType]
    if wrong := [text for text in texts if set(text) & set(",{}")]:
        raise ValueError(f"a value of axis {name} has no comma and no brace, got {wrong[0]!r}")
    return texts


def _text(value: Any) -> str:
    if value is None or isinstance(value, (str, int, float)):
        return "" if value is None else value if isinstance(value, str) else text_of(value)
    raise ValueError(f"a value is a text, a number, true or false, got {shortened(value)}")


def _number(content: Mapping[str, Any], key: str, read: Callable[[str], int]) -> int | None:
    if (value := content.get(key)) is None:
        return None
    try:
        return read(_text(value).replace("_", ""))  # digits in groups, as in 1_048_576, are a number in YAML
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{key} {error}") from error


def _without(content: Mapping[str, Any], axes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yields each excluded combination as `flags_text` of its values, alternatives joined by commas.

    Raises:
        ValueError: an entry is not a mapping of axes to their values.
    """
    listed = content.get("without") or []
    if not isinstance(listed, list):
        raise ValueError(f"without is a list of combinations, as {{fsdp: full_shard}}, got {shortened(listed)}")
    for combination in listed:  # type: ignore[reportUnknownVariableType]
        chosen = {name: _texts(name, values) for name, values in _mapping({"without": combination}, "without").items()}
        for name, values in chosen.items():
            if name == "micro_batch" or name not in axes:
                raise ValueError(f"without names {name}, which is no axis of flags: {', '.join(axes)}")
            if unknown := [value for value in values if value not in axes[name]]:
                raise ValueError(f"without names the value {unknown[0]!r}, which axis {name} does not have")
        yield flags_text({name: ",".join(values) for name, values in chosen.items()})


def _model(content: Mapping[str, Any], folder: Path) -> str | None:
    """Returns the model that stands in for the training: an absolute path, from the file's own folder, or a hub id."""
    model = content.get("model")
    if model is None:
        return None
    if not isinstance(model, str):
        raise ValueError(f"model is the path of a config.json or an id of the hub, got {shortened(model)}")
    path = (folder / user_path(model)).absolute()
    return str(path) if path.exists() or path.suffix == ".json" else model


def _means(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields the texts of `StudyOptions.means`: first the values at all points, then those of each value of an axis.

    Raises:
        ValueError: an entry is neither a value nor a mapping of values to meanings.
    """
    entries = _mapping(content, "means")
    if always := {name: _text(value) for name, value in entries.items() if not isinstance(value, Mapping)}:
        yield flags_text(always)
    for name, by_value in entries.items():
        for value, meaning in by_value.items() if isinstance(by_value, Mapping) else ():  # type: ignore[reportUnknownVariableType]
            where = f"means of {name}={_text(value)}"
            stated = {axis: _text(stated) for axis, stated in _mapping({where: meaning}, where).items()}
            yield flags_text({OWN + name: _text(value), **stated})
