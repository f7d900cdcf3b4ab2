"""`Job`: everything that one trial needs, as JSON that Tune and Train pass to the workers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.stages import schedule_refusal


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Settings for timing a batch point."""

    warmup_steps: int = 2
    min_windows: int = 3
    max_windows: int = 8
    window_s: float = 0.5
    """Approximate seconds of a window, which holds at least one optimizer step."""
    rung_s: float = 6.0
    """Seconds of a batch point's windows after which no further window starts."""
    peak_s: float = 0.5
    """Seconds of matrix products for the measured peak, once per study."""
    longest_step_s: float = 20.0
    """Longest step, in seconds, whose accumulation a winner's last run may measure."""
    winner_s: float = 30.0
    """Least seconds of windows in a winner's last run."""
    steps: int | None = None
    """Number of optimizer steps to time at every batch point, instead of as many as take `rung_s`."""
    whole_steps: bool = False
    """Whether every batch point times full steps, instead of deriving them from steps with few micro-steps."""

    @property
    def num_steps(self) -> int:
        """Least number of steps of a batch point, warm-up included; without `steps` it may run more in its time."""
        return max(1, self.warmup_steps - 1) + max(self.min_windows, self.steps or 0)

    @property
    def num_whole_steps(self) -> int:
        """Least number of full steps that a batch point runs, warm-up included; 0 if it derives them."""
        return self.num_steps if self.whole_steps else 0

    @property
    def fixes_steps(self) -> bool:
        """Whether a batch point's duration follows from its steps, because their number or all their micro-steps are
        given, instead of from its time.
        """
        return self.whole_steps or self.steps is not None

    @property
    def filled_s(self) -> float:
        """Seconds that a batch point's windows fill even if its steps are short; 0 if the number of steps is given."""
        return min(self.rung_s, self.max_windows * self.window_s) if self.steps is None else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateSize:
    """Size of the numerics gate: its optimizer steps from sharpened initial weights, and the sequences of each."""

    steps: int = 2
    sequences: int = 32
    rate: float = 0.02
    """Share of the recipe's learning rate reached before the last step, whose rate is larger.

    AdamW's first steps move each weight by the full rate, whatever its gradient, and a large step amplifies every
    rounding error: BLOOM's loss goes from 13.5 to 21.8 in one step at 1e-4 and from 13.2 to 15.3 at 1e-5, and its norm
    jumps from 4 to 12 on the way up to 1e-5 (docs/measurements.md).
    """


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPoint:
    """Allocated peaks of an earlier batch point by phase, from which the next one's memory is predicted."""

    micro_batch: int
    forward_backward_gib: float
    optimizer_gib: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One trial: a layout and the batch points to measure in the same processes."""

    trial_id: str
    recorder: str
    """Name of the recorder actor."""
    recipe: Recipe
    layout: Layout
    rungs: tuple[BatchPoint, ...]
    """Batch points to measure, ascending; empty if only the gate runs."""
    cluster: Cluster
    cpus_per_worker: float
    nodes: tuple[str, ...] = ()
    """Ray ids of the nodes that its workers may use; empty for all."""
    node_share: float = 1.0
    """Share of each node that it takes; other trials may run on other devices of the node at the same time."""
    repeat: int = 0
    """0 for the search's run; above 0 for a repeated run of one point in separate processes after the search."""
    is_winner_run: bool = False
    """Whether it is a winner's last run: with the largest accumulation that `Timing` allows, for `winner_s`. Without
    batch points it only runs the winner's numerics gate.
    """
    gate: GateSize | None = None
    """The numerics gate whose curves are recorded before any measurement; None for none."""
    gate_micro_batch: int = 1
    """Largest number of sequences in a micro-step of the gate if there are no batch points."""
    profile: BatchPoint | None = None
    """The batch point to profile instead of measuring; None for none."""
    incumbent_tokens_per_s: float | None = None
    """The recipe's best tokens/s so far; a batch point that cannot reach it is stopped as `slow`. None in runs after
    the search.
    """
    incumbent_derived: bool = False
    """Whether that is what this trial's nodes would have shown of it, by their matmul peaks."""
    known_memory: tuple[MemoryPoint, ...] = ()
    """Memory peaks of this layout's batch points from an earlier, interrupted run."""
    predicted_gib: tuple[tuple[int, float], ...] = ()
    """(micro-batch, predicted allocated peak in GiB) by the cost model; empty if it does not know the devices."""
    runs_one: bool = False
    """Whether its first batch point runs even if it is too late to start one."""
    finds_largest: bool = False
    """Whether to search a command's batch points for the largest that fits, and measure only this point."""
    likely_largest: int | None = None
    """The micro-batch to try first in that search, where another layout's answer is known."""
    tries_misfit: bool = False
    """Whether to run a batch point although it is predicted not to fit."""
    cap_gib: float | None = None
    held_gib: float | None = None
    """GiB to which torch's allocator is limited on a GPU, in addition to the cap; None for no limit."""
    matmul_peak_tflops: float | None = None
    """The measured matmul peak; None if the workers must measure it."""
    probe_s: float | None = None
    """Seconds for which the workers measure devices and links before the ladder; None if they need not."""
    datasheet_peak_tflops: float | None = None
    """The device's datasheet peak in the recipe's compute precision; None if the catalogue lacks it."""
    stop_at_s: float | None = None
    """Moment after which no batch point starts, by the monotonic clock of the driver's node; the recorder there
    converts it for the workers.
    """
    commit: str = "unknown"
    engine_source: str = ""
    """The `trainers.spec.engines.source_hash` at the study's start, for an engine outside this project; workers must
    have the same source.
    """
    environment: Mapping[str, str | None] = dataclasses.field(default_factory=dict[str, str | None])
    """Environment variables of a command whose values differ on its node; None for an unset one."""
    timing: Timing = Timing()
    hang_floor_s: float = 60.0
    """A trial counts as hung after max(this, 10 x its slowest micro-step) seconds without a micro-step."""
    first_step_s: float = 300.0
    """Seconds allowed for building the model, compiling and the first micro-step of a batch point."""

    @property
    def shares_nodes(self) -> bool:
        """Whether other trials may run on other devices of its nodes at the same time."""
        return self.node_share < 1

    def measurement(self, batch: BatchPoint, outcome: Outcome, **figures: Any) -> Measurement:
        """Returns the measurement of `batch` in this trial; `figures` are its further fields."""
        return Measurement(
            recipe=self.recipe,
            layout=self.layout,
            batch=batch,
            outcome=outcome,
            trial_id=self.trial_id,
            repeat=self.repeat,
            cap_gib=self.cap_gib,
            **figures,
        )


def gate_batch(job: Job) -> BatchPoint:
    """Returns the batch point of the numerics gate on the job's layout.

    Its micro-batch is the first one of `rungs`, or `gate_micro_batch`, if it divides the sequences, and otherwise the
    largest smaller one that does. It has at least two micro-steps if training accumulates gradients, to test
    accumulation.

    Raises:
        ValueError: data-parallel ranks do not divide the sequences, or there are too few for a pipeline.
    """
    gate = job.gate or GateSize()
    rank_sequences, remainder = divmod(gate.sequences, job.layout.data_parallel)
    if remainder or not rank_sequences:
        raise ValueError(
            f"{gate.sequences} sequences do not divide evenly over {job.layout.data_parallel} data-parallel ranks"
        )
    largest = job.rungs[0].micro_batch if job.rungs else job.gate_micro_batch
    recipe = job.recipe
    if rank_sequences > 1 and (recipe.grad_accum > 1 or recipe.global_batch > largest * job.layout.data_parallel):
        largest = min(largest, rank_sequences // 2)
    sizes = [size for size in range(1, min(largest, rank_sequences) + 1) if rank_sequences % size == 0]
    reasons = {size: schedule_refusal(job.layout, rank_sequences // size) for size in sizes}
    micro_batch = max((size for size in sizes if not reasons[size]), default=0)
    if not micro_batch:
        raise ValueError(reasons[1])
    return BatchPoint(micro_batch=micro_batch, grad_accum=rank_sequences // micro_batch)
