"""Describes the difference between two measurements in sentences."""

import math

from platform.common.text import figure
from platform.report.difference import NOTED, Difference
from platform.report.environment_diff import EnvironmentChange
from platform.study.result.ranking import ratio_interval


def sentences(difference: Difference) -> list[str]:
    """Returns sentences on the whole difference, each change with its share, the unexplained rest, and surroundings."""
    first, second, ratio = difference.first, difference.second, difference.ratio
    names = [
        f"{measurement.layout.label}, micro-batch {measurement.batch.micro_batch}" for measurement in (first, second)
    ]
    if ratio is None:
        ends = [f"{name}: {measurement.outcome}{f' ({measurement.reason})' if measurement.reason else ''}"
                for name, measurement in zip(names, (first, second), strict=True)]  # fmt: skip
        lines = [f"One of the two has no speed: {'; '.join(ends)}."]
    else:
        relation = f"{abs(1 - 1 / ratio):.1%} {'slower' if ratio > 1 else 'faster'} than"
        relation = "as fast as" if abs(ratio - 1) < NOTED else relation
        figures = f"{figure(second.tokens_per_s)} against {figure(first.tokens_per_s)} tokens/s"
        low, high = difference.interval or (0.0, math.inf)
        certainty = ratio_interval(1 / high, 1 / low) if difference.interval else ""
        if low <= 1 <= high:
            certainty = f"{certainty}, so not resolved" if certainty else "one run of each, so not resolved"
        lines = [f"{names[1]} is {relation} {names[0]}: {figures} ({certainty})."]
    lines += [_sentence(change, ratio) for change in difference.changes]
    if not difference.changes:
        lines.append("Recipe, layout and batch point are the same.")
    unexplained_ratio = difference.unexplained_ratio
    if unexplained_ratio is not None and ratio is not None and (difference.changes or difference.surroundings):
        whose = "the surroundings below" if difference.surroundings else "nothing that was recorded"
        model = (
            " and the cost model's error" if any(change.source == "predicted" for change in difference.changes) else ""
        )
        belongs = "" if abs(unexplained_ratio - 1) < NOTED / 2 else f" It belongs to {whose}{model}."
        lines.append(f"Unexplained: {_effect(unexplained_ratio, ratio)}.{belongs}")
    lines += [f"Also {surrounding.names[0]}: {surrounding.values}." for surrounding in difference.surroundings]
    lines += [f"Measured: {name} takes {figure(abs(s) * 1e3)} ms {'more' if s > 0 else 'less'}."
              for name, s in difference.parts.items()]  # fmt: skip
    return lines


def _sentence(change: EnvironmentChange, total_ratio: float | None) -> str:
    name = " with ".join(change.names)
    if change.ratio is None or total_ratio is None:
        return f"{name}: {change.values} (its share is not known: not measured alone, and not predicted here)."
    return f"{name}: {change.values}: {_effect(change.ratio, total_ratio)} ({change.source})."


def _effect(ratio: float, total_ratio: float) -> str:
    """Returns a ratio as text, such as "12.0 % slower, 80 % of the difference"."""
    if abs(ratio - 1) < NOTED / 2:
        return "no difference"
    words = f"{abs(1 - 1 / ratio):.1%} {'slower' if ratio > 1 else 'faster'}"
    share = math.log(ratio) / math.log(total_ratio) if abs(total_ratio - 1) >= NOTED else None
    return words if share is None else f"{words}, {share:.0%} of the difference"
