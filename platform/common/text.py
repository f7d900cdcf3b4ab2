"""Formats figures for people."""

from collections.abc import Sequence

from trainers.spec.layout import Layout


def figure(value: float | None) -> str:
    """Returns the value with three significant digits, with a thousands separator from 1000 on; "" for None."""
    if value is None:
        return ""
    size = abs(value)
    if size >= 1e7:
        return f"{value:.2e}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3g}"


def count(value: float) -> str:
    """Returns a count such as "100B" or "1.5M"."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def duration(seconds: float) -> str:
    """Returns seconds as "45 s", "3 min 20 s" or "2 h 5 min"."""
    whole_s = max(0, round(seconds))
    if whole_s < 60:
        return f"{whole_s} s"
    if whole_s < 3600:
        return f"{whole_s // 60} min {whole_s % 60} s"
    return f"{whole_s // 3600} h {whole_s % 3600 // 60} min"


def plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def stages(indices: Sequence[int]) -> str:
    """Returns pipeline stages as text, such as "stages 1 and 5"; "" for no stage."""
    return f"stage{'s' if len(indices) > 1 else ''} {' and '.join(map(str, indices))}" if indices else ""


def options(layout: Layout) -> str:
    """Returns a layout's kernels and other axes as text, without engine, sharding, degrees and checkpointing."""
    return ", ".join([*layout.axis_labels("kernels").values(), *layout.axis_labels("options").values()])
