"""Recorded results of a cell as a searcher's candidates: each row is a candidate with one rung and its result."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from platform.cost_model.columns import from_rows
from platform.cost_model.predict import predict
from platform.searchers.problem import Problem, TrialCosts
from platform.validate.evaluation import cells_of
from platform.validate.published_run import PublishedRun, axes_of
from trainers.records.measurement import TIMED, Outcome
from trainers.spec.batch import BatchPoint

START_S = 20.0
"""Seconds per device that a trial takes in addition to its steps; the whole duration of an out-of-memory error."""
STEPS = 10
NEAR = 0.98
"""Least share of the best throughput that counts as found: within 2 %."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """One configuration of a table. It is both the searcher's `Choice` and the `Result` of choosing it."""

    key: str
    axes: Mapping[str, Any]
    batch: BatchPoint
    tokens_per_step: int
    outcome: Outcome
    tokens_per_s: float | None
    peak_allocated_gib: float | None
    gpu_s: float
    """Device seconds of the trial."""
    utilization_pct: float | None = None
    micro_step_s: float | None = None
    """`utilization_pct` and `micro_step_s` are always None, because no table has them."""
    ran_out_on_host: bool = False
    """Always False, because no table tells apart whose memory ran out."""

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """The micro-batch of the one rung."""
        return (self.batch.micro_batch,)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCell:
    """All competing configurations of one cell: those of one recipe if the table names recipes."""

    name: tuple[str, ...]
    """(model, gpu, gpus, seq_len, global_batch)."""
    recipe: str
    """Id of the recipe; "" if the table has none."""
    runs: tuple[PublishedRun, ...]
    choices: tuple[Recorded, ...]

    @property
    def best_tokens_per_s(self) -> float:
        """Throughput of the fastest configuration."""
        return max(choice.tokens_per_s or 0.0 for choice in self.choices)

    def is_found(self, choice: Recorded) -> bool:
        """Returns whether the choice is within 2 % of the best."""
        return (choice.tokens_per_s or 0.0) >= NEAR * self.best_tokens_per_s

    def problem(self, seed: int) -> Problem[Recorded]:
        """Returns the problem for a searcher. The planned run is infinite, so that every saving is worth a trial."""
        return Problem(
            candidates=self.choices,
            seed=seed,
            columns=from_rows([run.values for run in self.runs]),
            tokens=math.inf,
            costs=TrialCosts(num_devices=self.runs[0].cluster.num_devices, start_s=START_S, rung_s=0.0, steps=STEPS),
        )

    def by_prediction(self) -> list[Recorded]:
        """Returns the choices in the cost model's order: expected throughput times probability of running well."""
        prediction = predict(from_rows([run.values for run in self.runs]))
        score = prediction.ok_probability / prediction.expected_s
        return [self.choices[place] for place in np.argsort(-score, kind="stable")]


def cells(runs: Sequence[PublishedRun]) -> list[RecordedCell]:
    """Returns the cells of merged runs with at least two configurations and one time, largest first."""
    large: list[RecordedCell] = []
    for (*name, recipe), places in cells_of(runs).items():
        members = tuple(runs[place] for place in places)
        if len(members) > 1 and any(run.step_time_s is not None for run in members):
            choices = tuple(_choice(str(place), run) for place, run in enumerate(members))
            large.append(RecordedCell(name=tuple(name), recipe=recipe, runs=members, choices=choices))
    return sorted(large, key=lambda cell: (-len(cell.choices), cell.name, cell.recipe))


def _choice(key: str, run: PublishedRun) -> Recorded:
    values = run.values
    tokens = int(values["global_batch"] * values["seq_len"])
    stated = run.row.get("outcome") or "ok"
    outcome = Outcome.OOM if run.out_of_memory else Outcome(stated)
    if run.out_of_memory and run.row["status"] == "crash_or_oom":
        outcome = Outcome.FAILED  # unknown cause
    if outcome is Outcome.OK and run.step_time_s is None:
        outcome = Outcome.SLOW  # it ran, but the table has no speed
    step_s = run.step_time_s if outcome in TIMED else None
    num_devices = run.cluster.num_devices
    return Recorded(
        key=key,
        axes=axes_of(run),
        batch=BatchPoint(micro_batch=int(values["micro_batch"]), grad_accum=int(values["grad_accum"])),
        tokens_per_step=tokens,
        outcome=outcome,
        tokens_per_s=None if step_s is None else tokens / step_s,
        peak_allocated_gib=run.allocated_gib,
        gpu_s=(START_S + STEPS * (step_s or 0.0)) * num_devices,
    )
