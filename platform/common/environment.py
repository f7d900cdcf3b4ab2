"""Ends a command with one sentence, not a traceback, if Python is too old or a package is missing."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import TracebackType

OURS = Path(__file__).resolve().parents[1]
OLDEST = (3, 11)
"""The oldest supported Python version."""


def explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an uncaught error, for `sys.excepthook`. A missing package or old Python: one sentence and exit code 2."""
    lack = lacking(error) if OURS in Path(sys.argv[0]).resolve().parents else ""
    if not lack:
        sys.__excepthook__(kind, error, trace)
        return
    print(f"error: {sys.executable} {lack}: run `{set_up()}` first", file=sys.stderr)
    sys.exit(2)


def lacking(error: BaseException) -> str:
    """Returns what this Python lacks, such as "has no package 'ray'", if it caused the error; "" for other causes."""
    if sys.version_info < OLDEST:
        return f"is Python {'.'.join(map(str, sys.version_info[:3]))}, {'.'.join(map(str, OLDEST))} or later is needed"
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    is_ours = package in ("platform", "search_spaces", "trainers")
    return "" if not package or is_ours or importlib.util.find_spec(package) else f"has no package {package!r}"


def set_up() -> str:
    """Returns the shell command, for the working folder, that creates or activates the environment of `make setup`."""
    root = OURS.parent
    venv = root / ".venv"
    make = "make setup" if Path.cwd() == root else f"make -C {os.path.relpath(root)} setup"
    if Path(sys.prefix).resolve() == venv.resolve():
        return make  # `make setup` did not finish
    activate = f". {os.path.relpath(venv / 'bin' / 'activate')}"
    return activate if (venv / ".installed").exists() else f"{make} && {activate}"
