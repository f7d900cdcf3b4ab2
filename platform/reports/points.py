"""One measurement for each point that was tried, however often it was run: for pictures and tables across layouts."""

from collections.abc import Sequence

from platform.finals.ranking import points
from platform.study.history import by_recipe
from trainers.values.measurement import Measurement, Outcome


def one_a_point(measurements: Sequence[Measurement]) -> list[Measurement]:
    """For each recipe, layout and batch point the run that stands for it; where one of its runs failed, that one.

    In the order in which the points were first tried.
    """
    shown: list[Measurement] = []
    for point in (point for group in by_recipe(measurements).values() for point in points(group)):
        failed = [run for run in point.decisive if run.outcome is not Outcome.OK]
        shown.append(failed[-1] if failed else point.shown)
    return shown
