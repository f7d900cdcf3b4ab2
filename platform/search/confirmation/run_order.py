"""The order of runs after the search: the finalists' in turn, the winner's last. Pure functions."""

import dataclasses
from collections.abc import Collection, Sequence

from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.setup.confirmation_rules import FINALISTS
from platform.study.result.beside_others import beside_others
from platform.study.result.ranking import PointRuns
from trainers.records.job import GateSize
from trainers.records.measurement import Measurement, Outcome
from trainers.records.search_state import SearchState


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmationRun:
    """A further run of a batch point in separate processes."""

    point: Measurement
    repeat: int

    def trial(self, state: SearchState, gate: GateSize | None = None) -> ConfirmationTrial:
        point = self.point
        return ConfirmationTrial(
            state=state, recipe=point.recipe, layout=point.layout, rungs=(point.batch,), repeat=self.repeat, gate=gate
        )


AttemptedRuns = frozenset[tuple[str, int, int]]
"""(layout id, micro-batch, repeat) of runs that this session has tried and does not repeat."""


def repeats_left(
    of_recipe: Sequence[PointRuns],
    *,
    repeats: int,
    limit: int | None = FINALISTS,
    attempted: AttemptedRuns = frozenset(),
) -> list[ConfirmationRun]:
    """Returns the remaining runs of one recipe's finalists, the next one first.

    Finalists are the best `limit` points of the search (None for all), including held points that ran, and as many
    points whose rows were disturbed. Each has `repeats` runs, in turn and back again (A B C C B A A B C), so that drift
    affects all equally. A point that failed in one run gets no further ones.
    """
    of_search = [
        point_runs
        for point_runs in of_recipe
        if point_runs.search and (point_runs.search.outcome is Outcome.OK or (point_runs.runs and point_runs.speeds))
    ]
    of_search.sort(key=lambda point: -point.derived_tokens_per_s)
    finalists = of_search[:limit]
    finalists += [point for point in beside_others(of_recipe)[:limit] if point not in finalists]
    remaining_runs: list[ConfirmationRun] = []
    for repeat in range(1, repeats + 1):
        for point in finalists if repeat % 2 else reversed(finalists):
            search = _search(point)
            has_lost_run = any(run.outcome is not Outcome.OK for run in point.runs)
            is_done = has_lost_run or any(run.repeat == repeat for run in point.runs)
            if not is_done and (search.layout.id, search.batch.micro_batch, repeat) not in attempted:
                remaining_runs.append(ConfirmationRun(point=search, repeat=repeat))
    return remaining_runs


def contenders_run(
    contenders: Sequence[PointRuns],
    *,
    after: int,
    most_rounds: int,
    attempted: AttemptedRuns = frozenset(),
    running: Collection[int] = (),
    current: Collection[int] = (),
) -> ConfirmationRun | None:
    """Returns the next run of the contenders, which run in turn: one round of runs for each number above `after`, the
    first that not all of them had and of which none is `running`; None after `most_rounds`.

    A contender that joins late begins with the `current` rounds of the others, without any with the last one, since
    runs with one number must follow each other in time.
    """
    rounds = [run.repeat for point in contenders for run in point.runs if run.repeat > after]
    first = min((*current, max(rounds, default=after + 1)))
    for repeat in range(first, after + most_rounds + 1):
        if repeat in running:
            continue
        for point in contenders if repeat % 2 else reversed(contenders):
            measurement = point.search or point.main_run
            had = any(run.repeat == repeat for run in point.runs)
            if not had and (measurement.layout.id, measurement.batch.micro_batch, repeat) not in attempted:
                return ConfirmationRun(point=measurement, repeat=repeat)
    return None


def last_run(best: PointRuns | None, *, repeats: int, attempted: AttemptedRuns = frozenset()) -> ConfirmationRun | None:
    """Returns the last run of the leading point, after its `repeats`; None if it has had one."""
    if best is None or best.search is None:
        return None
    search, last = best.search, repeats + 1
    had = (
        any(run.repeat == last for run in best.runs) or (search.layout.id, search.batch.micro_batch, last) in attempted
    )
    return None if had else ConfirmationRun(point=search, repeat=last)


def _search(point: PointRuns) -> Measurement:
    assert point.search is not None
    return point.search
