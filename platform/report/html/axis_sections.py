"""The section on the worth of each axis: how much faster one value is than another, all else equal."""

from collections.abc import Iterator, Sequence

from platform.report.html.elements import Block, Paragraph, headed
from platform.report.lessons import AxisGain, axis_gains
from platform.report.table import Column, Table
from platform.study.result.result import StudyResult

_MOST_ROWS = 40


def worth_of_axes(results: Sequence[StudyResult]) -> Iterator[Block]:
    """Yields a table of each recipe's comparisons, the axis with the largest certain gain first."""
    compared = [
        (of_recipe.recipe.label, gains)
        for result in results
        for of_recipe in result.by_id.values()
        if (gains := axis_gains(of_recipe, of_recipe.winner))
    ]
    for label, gains in compared:
        yield from headed(label, compared)
        importance = {gain.axis: 0.0 for gain in gains}
        for gain in gains:
            importance[gain.axis] = max(importance[gain.axis], _sure(gain))
        ordered = sorted(gains, key=lambda gain: (-importance[gain.axis], gain.axis, -_sure(gain), -gain.gain))
        yield Table(columns=_COLUMNS, rows=ordered[:_MOST_ROWS])
        if more := len(ordered[_MOST_ROWS:]):
            yield Paragraph(f"And {more:,} comparisons of less.", note=True)
    if compared:
        words = "Pairs of measurements that differ in this axis alone; the least that the interval leaves comes first."
        yield Paragraph(f"{words} A single pair is resolved by runs beside each other only.", note=True)


def _sure(gain: AxisGain) -> float:
    """Returns the lower end of the gain's interval; 0 if it is negative or unknown."""
    return max(0.0, gain.ends[0]) if gain.ends else 0.0


def _ends(gain: AxisGain) -> str:
    if gain.ends is None:
        return "not resolved"
    return f"{100 * gain.ends[0]:+.1f} to {100 * gain.ends[1]:+.1f} %"


_COLUMNS: list[Column[AxisGain]] = [
    Column(title="axis", value=lambda gain: gain.axis.replace("_", "-"), left=True),
    Column(title="faster value", value=lambda gain: str(gain.value)),
    Column(title="than", value=lambda gain: str(gain.other)),
    Column(title="by", value=lambda gain: f"{100 * gain.gain:.1f} %"),
    Column(title="95 % interval", value=_ends, css=lambda gain: "" if _sure(gain) else "color: var(--faint)"),
    Column(title="pairs", value=lambda gain: gain.num_pairs),
]
