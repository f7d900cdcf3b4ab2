"""Searches a user's own function from Python."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.api.searches import Search, search
from platform.api.studies import MeasuredStudy
from platform.common.errors import InputError
from trainers.spec.workload import text_of


def measure(
    build: Callable[[Any], Callable[[], Any]] | str, axes: Mapping[str, Sequence[Any]] | None = None, **options: Any
) -> MeasuredStudy | Search:
    """Measures with which values of `axes` the training made by `build` is fastest (docs/your-function.md); returns its
    study.

    `build` is a function at the top of a file, or its name as `FILE.py:NAME`. `options` are those of `search`;
    `tokens_per_step` is required.

    Raises:
        InputError: trials could not find the function, or the search refused its options.
        ClusterError: the cluster is at fault.
        KeyboardInterrupt: the search was interrupted; the study keeps what was measured.
    """
    name = build if isinstance(build, str) else _name_of(build)
    return search(build=name, set={axis: _texts(axis, values) for axis, values in (axes or {}).items()}, **options)


def _texts(axis: str, values: Sequence[Any]) -> list[str]:
    texts = [text_of(value) for value in ([values] if isinstance(values, str) else values)]
    if wrong := [text for text in texts if "," in text or text != text.strip()]:
        raise InputError(f"a value of axis {axis} has neither commas nor spaces around it, got {wrong[0]!r}")
    return texts


def _name_of(build: Callable[..., Any]) -> str:
    name: str = getattr(build, "__qualname__", "")
    try:
        path = Path(inspect.getsourcefile(build) or "")
    except TypeError:
        path = Path()
    if not path.is_file() or not all(part.isidentifier() for part in name.split(".")):
        raise InputError(
            f"{name or repr(build)} is no function at the top of a file, where trials could find it: write it into one"
            " (%%writefile in a notebook)"
        )
    return f"{os.path.relpath(path)}:{name}"
