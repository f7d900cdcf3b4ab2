"""Makes a trial's `Job` from the study so far, and the measurement of a trial that ended without a result."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from platform.cluster.connection import users_environment
from platform.cost_model.columns import Array, Columns
from platform.cost_model.hardware import datasheet_tflops
from platform.cost_model.ordering import known_columns
from platform.cost_model.predict import predict
from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.confirmation.held_runs import held_gib
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.history import History
from platform.study.node_paces import pace_at, pace_of
from platform.study.result.ranking import winner
from search_spaces.candidate import Candidate
from trainers.measuring.ladder import misfits, with_headroom_gib
from trainers.records.job import Job, MemoryPoint, Timing
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec.batch import BatchPoint, divides, values_of
from trainers.spec.cluster import Cluster

GATE_MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
"""Micro-batches considered for the reference of a numerics gate, which has no rungs."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrialSettings:
    cluster: Cluster
    cpus_per_worker: float
    recorder: str
    commit: str
    cap_gib: float | None
    timing: Timing
    nodes: tuple[str, ...] = ()
    """Ray ids of the nodes that workers may use; empty for all."""
    hang_floor_s: float = 60.0
    first_step_s: float = 300.0
    probe_s: float | None = None
    """Seconds in which the first trial measures devices and links; None if they are known or not used."""
    tries_misfit: bool = False
    """Whether one rung predicted not to fit is run anyway, until one ran out of memory. So a stand-in shows what a
    search on a real device meets.
    """
    predicted_gib: Mapping[str, Mapping[int, float]] = dataclasses.field(default_factory=dict[str, Mapping[int, float]])
    """Predicted peak memory from the plan, by candidate and micro-batch. Missing ones are predicted again, in 20 ms."""
    predicted_speed: Mapping[str, Mapping[int, float]] = dataclasses.field(
        default_factory=dict[str, Mapping[int, float]]
    )
    """Tokens/s that the plan predicts, by candidate and micro-batch; empty where it predicts none."""
    rules: ConfirmationRules | None
    """The steps of confirmation; None for none."""

    @property
    def limit_gib(self) -> float:
        """Device memory in GiB that a process may use."""
        return min(self.cluster.device_memory_gib, self.cap_gib or self.cluster.device_memory_gib)


def make_job(
    candidate: Candidate,
    rungs: tuple[BatchPoint, ...],
    final: ConfirmationTrial | None,
    *,
    history: History,
    settings: TrialSettings,
    stop_at_s: float | None,
    runs_one: bool = False,
    nodes: Mapping[str, str] = MappingProxyType({}),
    node_share: float = 1.0,
    probes: bool = True,
    measures_peak: bool = False,
) -> Job:
    """Returns a trial of `candidate` that climbs `rungs`, for the search or as the `final` one; it begins no rung after
    `stop_at_s` by the driver's monotonic clock (None: no limit), except its first where it `runs_one`. It runs on
    `nodes` (addresses by Ray's ids; empty: where the settings allow), of each of which it takes `node_share`, and
    `probes` devices and links where that is still to be done. It `measures_peak` of its devices anew, else where that
    of these nodes is not known.
    """
    # Where all points are requested, none is cut short.
    race = final is None and not (settings.rules and settings.rules.finalists is None)
    best = _incumbent(candidate.recipe.id, history) if race and _has_paces(nodes.values(), history) else None
    # What these nodes would have shown of it.
    pace = pace_at(nodes.values(), history.paces) / pace_of(best, history.paces) if best else 1.0
    memory_measurements = memory_points(history.measured(candidate.key))
    ladder = dataclasses.replace(
        candidate, micro_batches=tuple(sorted({point.micro_batch for point in (*memory_measurements, *rungs)}))
    )
    held = _held_gib(candidate, rungs, history, settings) if final else None
    # The highest number, not the count: a trial's first line may be missing.
    number = history.last_trial_number + 1
    return Job(
        trial_id=f"t{number:04d}",
        recorder=settings.recorder,
        recipe=candidate.recipe,
        layout=candidate.layout,
        engine_source=history.header.engines.get(candidate.layout.rules.name, "") if history.header else "",
        rungs=rungs,
        cluster=settings.cluster,
        cpus_per_worker=settings.cpus_per_worker,
        nodes=tuple(nodes) or settings.nodes,
        node_share=node_share,
        repeat=final.repeat if final else 0,
        is_winner_run=final is not None and final.is_winner_run,
        gate=final and final.gate,
        gate_micro_batch=gate_micro_batch_of(candidate, history, settings) if final and final.gate and not rungs else 1,
        profile=final and final.profile,
        incumbent_tokens_per_s=best and best.tokens_per_s and best.tokens_per_s * pace,
        incumbent_derived=pace != 1,
        known_memory=memory_measurements if race else (),
        predicted_gib=_predicted(ladder, settings) if race else (),
        runs_one=runs_one,
        finds_largest=candidate.finds_largest and final is None,
        likely_largest=_likely_largest(candidate, history) if candidate.finds_largest else None,
        tries_misfit=race
        and settings.tries_misfit
        and all(measurement.outcome is not Outcome.OOM for measurement in history.measurements),
        cap_gib=settings.cap_gib,
        held_gib=held,
        probe_s=settings.probe_s if probes and history.probe is None and final is None else None,
        matmul_peak_tflops=None
        if measures_peak
        else history.peak_tflops(candidate.recipe.compute_precision, nodes=nodes.values()),
        datasheet_peak_tflops=datasheet_tflops(settings.cluster, candidate.recipe.product_type),
        environment=users_environment() if candidate.recipe.command else {},
        stop_at_s=stop_at_s,
        commit=settings.commit,
        timing=settings.timing if held is None or (final and final.is_winner_run) else _long(settings.timing),
        hang_floor_s=settings.hang_floor_s,
        first_step_s=settings.first_step_s,
    )


def _likely_largest(candidate: Candidate, history: History) -> int | None:
    """Returns the largest micro-batch of the most similar layout that has an answer; None without one."""
    found = [
        measurement
        for measurement in history.of_recipe(candidate.recipe.id)
        if measurement.outcome in TIMED and not measurement.repeat and not measurement.untried_micro_batch
    ]

    def shared(one: Measurement) -> int:
        return len(values_of(candidate.layout, one.batch).items() & values_of(one.layout, one.batch).items())

    alike = max(found, key=shared, default=None)
    return alike.batch.micro_batch if alike else None


def _incumbent(recipe_id: str, history: History) -> Measurement | None:
    fastest = None if history.paces else history.tally.fastest(recipe_id)
    return fastest or winner(history.of_recipe(recipe_id), history.paces)


def _has_paces(addresses: Iterable[str], history: History) -> bool:
    """Returns whether figures of these nodes compare with those of others: their matmul peaks are measured, or play no
    part. A node that joined measures its own in its first trial.
    """
    on_gpus = history.header is not None and history.header.cluster.device_kind == "cuda"
    if not history.peaks or not on_gpus:
        return True
    of_paces = (peak for peak in history.peaks if peak.precision == history.peaks[0].precision)
    return set(addresses) <= {*history.lagging, *(node for peak in of_paces for node in peak.nodes)}


def _held_gib(
    candidate: Candidate, rungs: Sequence[BatchPoint], history: History, settings: TrialSettings
) -> float | None:
    """Returns the GiB to which a confirmation run limits its allocator; None for no limit."""
    search = next((m for m in history.measured(candidate.key) if m.batch in rungs), None)
    return held_gib(search, settings.limit_gib)


def _long(timing: Timing) -> Timing:
    """Returns the timing with windows as long as those of a winner's run at length."""
    return dataclasses.replace(timing, window_s=timing.winner_s / timing.max_windows, rung_s=timing.winner_s)


def gate_micro_batch_of(candidate: Candidate, history: History, settings: TrialSettings) -> int:
    """Returns the largest micro-batch that surely fits: one that ran, or whose prediction is at most half of the
    memory.

    The reference of a numerics gate may never have run. At micro-batch 1 it is bound by its host, which took 45 of 378
    s in a search of GPT-2 on an H200; too large a micro-batch would cost its whole trial.
    """
    recipe, layout = candidate.recipe, candidate.layout
    even = tuple(n for n in GATE_MICRO_BATCHES if divides(recipe, layout, n))
    predicted = predicted_gib(dataclasses.replace(candidate, micro_batches=even), settings.cluster, settings.cap_gib)
    measured = history.measured(candidate.key)
    timed_sizes = {measurement.batch.micro_batch for measurement in measured if measurement.outcome in TIMED}
    refused = min(
        (measurement.batch.micro_batch for measurement in measured if measurement.outcome not in TIMED),
        default=math.inf,
    )
    sizes = {1, *timed_sizes, *(size for size, gib in predicted if gib <= settings.limit_gib / 2)}
    return max(size for size in sizes if size < refused or size == 1)


def misfits_of_layout(job: Job, history: History, settings: TrialSettings) -> tuple[Measurement, ...]:
    """Returns the job's rungs that do not fit by the layout's own line of memory, as skipped measurements, each
    reported once.

    Such a line is more accurate than a prediction, whose error all layouts share.
    """
    limit_gib = with_headroom_gib(settings.limit_gib, outside_gib=0.0)
    measured_batches = {measurement.batch for measurement in history.measured(f"{job.recipe.id}-{job.layout.id}")}
    refused = misfits(job, job.known_memory, job.rungs, limit_gib)
    return tuple(
        dataclasses.replace(measurement, trial_id="")
        for measurement in refused
        if measurement.batch not in measured_batches
    )


def failed_measurement(job: Job, batch: BatchPoint, reason: str) -> Measurement:
    """Returns a failed measurement for a rung whose trials died without a result."""
    return job.measurement(batch, Outcome.FAILED, reason=reason or "its processes ended without a message")


def _predicted(candidate: Candidate, settings: TrialSettings) -> tuple[tuple[int, float], ...]:
    planned = settings.predicted_gib.get(candidate.key, {})
    if all(micro_batch in planned for micro_batch in candidate.micro_batches):
        return tuple((micro_batch, planned[micro_batch]) for micro_batch in candidate.micro_batches)
    return predicted_gib(candidate, settings.cluster, settings.cap_gib)


def planned_figures(
    candidates: Sequence[Candidate], columns: Columns | None
) -> tuple[dict[str, dict[int, float]], dict[str, dict[int, float]]]:
    """Returns the candidates' predicted peak memory, and tokens/s, by candidate and micro-batch, from the plan's
    columns; empty without any.
    """
    if columns is None:
        return {}, {}
    prediction = predict(columns)
    speeds = columns.tokens_per_step / prediction.step.total_s
    return _by_rung(candidates, prediction.memory.allocated_gib), _by_rung(candidates, speeds)


def _by_rung(candidates: Sequence[Candidate], rows: Array) -> dict[str, dict[int, float]]:
    values = iter(rows.tolist())
    return {
        candidate.key: {micro_batch: next(values) for micro_batch in candidate.micro_batches}
        for candidate in candidates
    }


def predicted_gib(candidate: Candidate, cluster: Cluster, cap_gib: float | None) -> tuple[tuple[int, float], ...]:
    """Returns the candidate's micro-batches with predicted peak memory; empty without predictions."""
    columns = known_columns([candidate], cluster, cap_gib) if candidate.recipe.has_model else None
    if columns is None:
        return ()
    return tuple(zip(candidate.micro_batches, predict(columns).memory.allocated_gib.tolist(), strict=True))


def memory_points(measured: Sequence[Measurement]) -> tuple[MemoryPoint, ...]:
    """Returns the memory peaks of the measurements that have them."""
    return tuple(
        MemoryPoint(
            micro_batch=m.batch.micro_batch,
            forward_backward_gib=m.peak_forward_backward_gib,
            optimizer_gib=m.peak_optimizer_gib,
        )
        for m in measured
        if m.peak_forward_backward_gib is not None and m.peak_optimizer_gib is not None
    )
