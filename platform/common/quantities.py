"""Parsers of numbers in options: counts such as 100B, durations such as 10m, whole numbers."""

import argparse
import math
import re
from collections.abc import Callable, Mapping

_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def positive(text: str) -> float:
    """Returns a number above 0 without a unit.

    Raises:
        argparse.ArgumentTypeError: `text` is not such a number.
    """
    return _above_zero(text, {"": 1.0}, "a number above 0")


def amount(text: str) -> float:
    """Returns a number above 0 such as 2e9, 300M or 100B; k, M, B and T mean 1e3, 1e6, 1e9 and 1e12.

    Raises:
        argparse.ArgumentTypeError: `text` is not such a number.
    """
    return _above_zero(text, _COUNTS, "a number above 0, as in 2e9, 300M or 100B")


def duration(text: str) -> float:
    """Returns the seconds of a duration above 0 such as 90, 90s, 10m, 1.5h or 2d.

    Raises:
        argparse.ArgumentTypeError: `text` is not such a duration.
    """
    return _above_zero(text, _SECONDS, "a duration above 0, as in 90 (seconds), 10m, 1.5h or 2d")


def whole_number(least: int) -> Callable[[str], int]:
    """Returns a parser of whole numbers from `least` to 2**62, such as 2000, 2e9 or 2B.

    The parser raises `argparse.ArgumentTypeError` for other texts.
    """

    def read(text: str) -> int:
        value = _value(text, _COUNTS)
        if value == value // 1 and least <= value <= 2**62:
            return int(text) if text.isdecimal() else int(value)
        requirement = f"must be a whole number of at least {least}, as in 2000, 2e9 or 2B"
        raise argparse.ArgumentTypeError(f"{requirement}, got {text!r}")

    return read


def length(text: str) -> int:
    """Returns a sequence's number of tokens; 8k means 8,192, as in `--set seq_len=8k`.

    Raises:
        argparse.ArgumentTypeError: `text` is no whole number of at least 1.
    """
    kibi = re.fullmatch(r"(\d{1,12})k", text.strip(), re.IGNORECASE)
    return whole_number(1)(text if kibi is None else str(int(kibi[1]) * 1024))


def _above_zero(text: str, units: Mapping[str, float], requirement: str) -> float:
    value = _value(text, units)
    if value > 0 and math.isfinite(value):
        return value
    raise argparse.ArgumentTypeError(f"must be {requirement}, got {text!r}")


def _value(text: str, units: Mapping[str, float]) -> float:
    """Returns the number times its unit; NaN if the text is not a number with one of `units`."""
    match = _NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in units:
        return math.nan
    # Rounded to 15 digits, because a product such as 0.1 * 1e3 may be off by the last bit.
    return float(f"{float(match[1]) * units[match[2].lower()]:.15g}")
