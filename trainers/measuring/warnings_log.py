"""Records this process's warnings, each once: incompatible library versions often show there first."""

import logging
import re
import sys
import warnings
from typing import Any

_CHANGING = re.compile(r"0x[0-9a-fA-F]+|/tmp/\S+|\d{4,}")
"""Addresses, temporary paths and long numbers (ports, process ids), which differ between processes."""
_MOST, _LENGTH = 50, 200
_texts: dict[str, None] = {}
_watching = False


def watch() -> None:
    """Records warnings from now on: Python's `warnings`, and log records of level WARNING or above.

    Warnings stay visible as before, so none under PYTHONWARNINGS=ignore, which workers have. Messages that C++ code
    writes to standard error are not recorded.
    """
    global _watching
    if _watching:
        return
    _watching = True
    is_shown = "ignore" not in sys.warnoptions
    if not is_shown:  # Python would drop them before `showwarning` is called
        warnings.simplefilter("default")
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
    show, make = warnings.showwarning, logging.getLogRecordFactory()

    def show_and_record(message: Warning | str, category: type[Warning], *arguments: Any, **options: Any) -> None:
        _record(f"{category.__name__}: {message}")
        if is_shown:
            show(message, category, *arguments, **options)

    def make_and_record(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = make(*arguments, **more)
        if record.levelno >= logging.WARNING and not f"{record.name}.".startswith("ray."):
            try:
                _record(f"{record.name}: {record.getMessage()}")
            except (TypeError, ValueError):  # the logger itself reports arguments that do not match the text
                return record
        return record

    warnings.showwarning = show_and_record
    logging.setLogRecordFactory(make_and_record)


def recorded() -> tuple[str, ...]:
    """Returns the warnings so far, sorted, each once, without parts that differ between processes."""
    return tuple(sorted(_texts))


def _record(text: str) -> None:
    if len(_texts) < _MOST:
        lines = _CHANGING.sub("...", text).strip().splitlines()
        _texts[lines[0][:_LENGTH] if lines else ""] = None
