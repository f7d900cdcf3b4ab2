"""The generic `--set axis=value,value`: reads text as typed values of a `Layout`, of a `Recipe`, or of the ladder."""

import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from trainers.spec import engines
from trainers.spec.axis import axes_of
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

MICRO_BATCH = "micro_batch"
GRAD_ACCUM = "grad_accum"
POINT = "point"

_SYNONYMS = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "mbs": "micro_batch",
    "micro_batch_size": "micro_batch",
    "gas": "grad_accum",
    "gradient_accumulation_steps": "grad_accum",
    "batch": "global_batch",
    "batch_size": "global_batch",
    "gbs": "global_batch",
    "sequence_length": "seq_len",
    "length": "seq_len",
    "context": "seq_len",
    "stage": "zero_stage",
    "sharding": "zero_stage",
    "strategy": "engine",
    "precision": "compute_precision",
    "dtype": "compute_precision",
    "recompute": "checkpointing",
    "activation_checkpointing": "checkpointing",
    "gradient_checkpointing": "checkpointing",
}
"""Other programs' names for axes, for suggestions."""
_KIBI = re.compile(r"(\d+)k", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AxisChange:
    """An axis with the values that replace the space's."""

    axis: str
    kind: Literal["recipe", "layout", "micro_batch", "point"]
    values: tuple[Any, ...]


def parse(texts: Sequence[str]) -> tuple[AxisChange, ...]:
    """Reads texts such as "zero_stage=1,2" or "seq_len=8k", where k means 1,024.

    Raises:
        ValueError: no "=", an unknown axis (similar names are listed), an axis set twice, or a value of the wrong type.
    """
    changes: dict[str, AxisChange] = {}
    for text in texts:
        axis, equals, listed = text.partition("=")
        axis = axis.strip()
        if not equals or not axis:
            raise ValueError(f"--set needs axis=value,value, got {text!r}")
        if axis in changes:
            raise ValueError(f"--set {axis} is given twice: list its values in one, as in {axis}=a,b")
        kind, hint = _axis(axis)
        values = tuple(dict.fromkeys(_value(axis, item.strip(), hint) for item in listed.split(",")))
        changes[axis] = AxisChange(axis=axis, kind=kind, values=values)
    return tuple(changes.values())


def axes() -> dict[str, str]:
    """Returns every axis that `--set` takes, with its values, for help texts."""
    return {axis: _allowed(axis, hint) for axis, (_, hint) in _axes().items()}


def spelling_hint(word: str, candidates: Iterable[str]) -> str:
    """Returns the end of a sentence on an unknown name, `; did you mean x or y?`, or "" if no known name is similar."""
    options = list(candidates)
    names = [_SYNONYMS[word]] if _SYNONYMS.get(word) in options else difflib.get_close_matches(word, options, 3, 0.55)
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _axes() -> dict[str, tuple[Literal["recipe", "layout", "micro_batch", "point"], Any]]:
    layout = typing.get_type_hints(Layout)
    recipe = typing.get_type_hints(Recipe)
    return {
        **{name: ("layout", layout[name]) for name in axes_of(Layout)},
        MICRO_BATCH: ("micro_batch", int),
        **{name: ("recipe", recipe[name]) for name in axes_of(Recipe)},
        POINT: ("point", str),
    }


def _axis(axis: str) -> tuple[Literal["recipe", "layout", "micro_batch", "point"], Any]:
    axes_by_name = _axes()
    if axis not in axes_by_name:
        raise ValueError(
            f"unknown axis {axis!r} in --set{spelling_hint(axis, axes_by_name)}"
            f" (the axes are {', '.join(axes_by_name)})"
        )
    return axes_by_name[axis]


def _value(axis: str, text: str, hint: Any) -> Any:
    allowed = _allowed(axis, hint)
    if axis == "engine" and engines.is_path(text):
        return engines.imported_rules(text).name
    if axis == "engine":
        hint = Literal[engines.names()]
    if typing.get_origin(hint) is Literal:
        names = typing.get_args(hint)
        if text not in names:
            raise ValueError(f"{axis} has no value {text!r}{spelling_hint(text, names)} ({axis} takes {allowed})")
        return text
    if hint is str and text:
        return text
    if hint in (int, float):
        if hint is int and (kibi := _KIBI.fullmatch(text)):
            return int(kibi[1]) * 1024  # 8k is 8,192, for lengths and batches
        try:
            number = hint(text)
        except ValueError:
            number = math.nan
        if isinstance(number, int) or math.isfinite(number):
            return number
    raise ValueError(f"{axis} takes {allowed}, got {text[:80]!r}")


def _allowed(axis: str, hint: Any) -> str:
    if axis == "engine":
        return f"{', '.join(engines.names())} or the import path of one of your own, package.module:NAME"
    if typing.get_origin(hint) is Literal:
        return ", ".join(typing.get_args(hint))
    return {int: "whole numbers", float: "numbers", str: "names"}[hint]
