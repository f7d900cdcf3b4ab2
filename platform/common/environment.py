"""Ends a command whose Python is too old, or lacks a package, in one sentence in place of a traceback."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import TracebackType

OURS = Path(__file__).resolve().parents[1]
OLDEST = (3, 11)
"""The oldest Python that the code is written for."""


def explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an uncaught error, as a hook of `sys.excepthook`; a command that the environment stops gets a sentence and
    exit code 2.
    """
    lack = lacking(error) if OURS in Path(sys.argv[0]).resolve().parents else ""
    if not lack:
        sys.__excepthook__(kind, error, trace)
        return
    print(f"error: {sys.executable} {lack}: run `{set_up()}` first", file=sys.stderr)
    sys.exit(2)


def lacking(error: BaseException) -> str:
    """Returns what this Python lacks that caused the error; "" where the error has another cause."""
    if sys.version_info < OLDEST:
        return f"is Python {'.'.join(map(str, sys.version_info[:3]))}, {'.'.join(map(str, OLDEST))} or later is needed"
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    is_ours = package in ("platform", "search_spaces", "trainers")
    return "" if not package or is_ours or importlib.util.find_spec(package) else f"has no package {package!r}"


def set_up() -> str:
    """Returns the command, in the working folder, that leads to the environment of `make setup`."""
    root = OURS.parent
    venv = root / ".venv"
    make = "make setup" if Path.cwd() == root else f"make -C {os.path.relpath(root)} setup"
    if Path(sys.prefix).resolve() == venv.resolve():
        return make  # it was ended before it was through
    activate = f". {os.path.relpath(venv / 'bin' / 'activate')}"
    return activate if (venv / ".installed").exists() else f"{make} && {activate}"
