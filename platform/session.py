"""One session of a study: what may run, what is skipped and why, the search itself, and what is left behind."""

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from platform import tune
from platform.cluster import Place
from platform.cost_model.memory import lower_bound
from platform.loop import Budget, Loop, Settings
from platform.reports import progress
from platform.searchers import Searcher
from platform.study.history import History
from platform.study.journal import Tail
from platform.study.study import Study
from search_spaces.space import Candidate, Rejected
from trainers.cluster import Cluster
from trainers.job import Timing
from trainers.journal import Measured
from trainers.layout import BatchPoint, Layout
from trainers.measurement import Measurement, Outcome
from trainers.recipe import Recipe
from trainers.support import refusal


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What of a space a search will try, and what it leaves out."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[Measurement, ...]
    """With outcome `skipped` and the reason: layouts that cannot run, rungs that cannot fit."""

    @property
    def num_rungs(self) -> int:
        """Batch points of all candidates."""
        return sum(len(candidate.micro_batches) for candidate in self.candidates)


def make_plan(
    candidates: Sequence[Candidate], rejected: Sequence[Rejected], cluster: Cluster, cap_gib: float | None
) -> Plan:
    """Leaves out what an engine refuses here, and every rung whose lower bound of memory exceeds device or cap."""
    kept: list[Candidate] = []
    skipped = [_skip(each.recipe, each.layout, 1, each.reason, cap_gib) for each in rejected]
    limit = min(cluster.device_memory_gib, cap_gib or cluster.device_memory_gib)
    for candidate in candidates:
        recipe, layout = candidate.recipe, candidate.layout
        if (reason := refusal(recipe, layout, cluster)) is not None:
            skipped.append(_skip(recipe, layout, candidate.micro_batches[0], reason, cap_gib))
            continue
        fits: list[int] = []
        for batch in candidate.batch_points():
            bound = lower_bound(recipe, layout, batch)
            if bound.total_gib <= limit:
                fits.append(batch.micro_batch)
            else:
                reason = f"{bound.sentence} A device has {limit:.2f} GiB."
                skipped.append(_skip(recipe, layout, batch.micro_batch, reason, cap_gib))
        if fits:
            kept.append(dataclasses.replace(candidate, micro_batches=tuple(fits)))
    return Plan(candidates=tuple(kept), skipped=tuple(skipped))


def _skip(recipe: Recipe, layout: Layout, micro_batch: int, reason: str, cap_gib: float | None) -> Measurement:
    accum = max(1, recipe.global_batch // (micro_batch * layout.data_parallel))
    batch = BatchPoint(micro_batch=micro_batch, grad_accum=accum)
    return Measurement(
        recipe=recipe, layout=layout, batch=batch, outcome=Outcome.SKIPPED, reason=reason, cap_gib=cap_gib
    )


def run(
    *,
    study: Study,
    history: History,
    plan: Plan,
    searcher: Searcher,
    budget: Budget,
    place: Place,
    cap_gib: float | None,
    timing: Timing,
    commit: str,
    confirm: bool,
) -> Loop:
    """Searches until the loop ends; returns it, with the history up to date.

    Raises:
        KeyboardInterrupt: the user asked to stop; what was measured is in the journal.
    """
    known = {measurement.id for measurement in history.measurements}
    for measurement in plan.skipped:
        if measurement.id not in known:
            study.record(Measured(measurement=measurement))
    with tune.recorder(study.journal) as name:
        settings = Settings(
            cluster=place.cluster,
            cpus_per_worker=place.cpus_per_worker,
            recorder=name,
            commit=commit,
            cap_gib=cap_gib,
            timing=timing,
            confirm=confirm,
        )
        loop = Loop(
            study=study,
            history=history,
            candidates=plan.candidates,
            searcher=searcher,
            budget=budget,
            settings=settings,
        )
        with progress.followed(study.journal, loop, total=len(plan.candidates)):
            tune.run(loop, driver_ip=place.driver_ip)
    loop.refresh()
    return loop
