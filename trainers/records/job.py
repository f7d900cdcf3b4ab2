"""`Job`: everything that one trial needs, as the JSON that passes through Tune and Train to the workers."""

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
    """Settings for the timing of a rung."""

    warmup_steps: int = 2
    min_windows: int = 3
    max_windows: int = 8
    window_s: float = 0.5
    """A window holds as many optimizer steps as take about this long, at least one."""
    rung_s: float = 6.0
    """Seconds of a rung's windows after which no further window starts."""
    peak_s: float = 0.5
    """Seconds of matrix products for the measured peak, once a study."""
    longest_step_s: float = 20.0
    """Longest step, in seconds, of the accumulation that a winner's last run measures."""
    winner_s: float = 30.0
    """Least seconds of the windows of a winner's last run."""
    steps: int | None = None
    """Optimizer steps that every rung times, instead of as many as take `rung_s`."""
    whole_steps: bool = False
    """Whether every rung times steps of all their micro-steps, instead of a few from which the step is derived."""

    @property
    def num_steps(self) -> int:
        """The fewest steps that a rung runs, warm-up included; without `steps` it may run more in its time."""
        return max(1, self.warmup_steps - 1) + max(self.min_windows, self.steps or 0)

    @property
    def num_whole_steps(self) -> int:
        """The fewest steps of all micro-steps that a rung runs, warm-up included; 0 where it derives them."""
        return self.num_steps if self.whole_steps else 0

    @property
    def fixes_steps(self) -> bool:
        """Whether a rung is as long as its steps, which have their number or all their micro-steps, in place of filling
        its time.
        """
        return self.whole_steps or self.steps is not None

    @property
    def filled_s(self) -> float:
        """The seconds that a rung's windows fill however short its steps are; 0 where their number is stated."""
        return min(self.rung_s, self.max_windows * self.window_s) if self.steps is None else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateSize:
    """Size of the numerics gate: optimizer steps from sharpened first weights on, and sequences in each."""

    steps: int = 2
    sequences: int = 32
    rate: float = 0.02
    """Share of the recipe's learning rate up to which it grows before the last step, whose own is larger. AdamW's first
    steps move each weight by all of it, whatever its gradient, and a step that is too long multiplies every rounding:
    BLOOM's loss goes from 13.5 to 21.8 in one step at 1e-4, from 13.2 to 15.3 at 1e-5, and its norm leaps from 4 to 12
    on the way up to 1e-5 (docs/measurements.md).
    """


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPoint:
    """Allocated peaks of one rung that already ran, by phase, from which the next rung's memory is predicted."""

    micro_batch: int
    forward_backward_gib: float
    optimizer_gib: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One trial: one layout and the rungs to climb in the same processes."""

    trial_id: str
    recorder: str
    """Name of the recorder actor."""
    recipe: Recipe
    layout: Layout
    rungs: tuple[BatchPoint, ...]
    """Batch points to measure, ascending; empty where only the gate is run."""
    cluster: Cluster
    cpus_per_worker: float
    nodes: tuple[str, ...] = ()
    """Ray's ids of the nodes that its workers may use; empty for all."""
    node_share: float = 1.0
    """Share of each of these nodes that it takes; other trials may run on other devices of them at the same time."""
    repeat: int = 0
    """0 for the search's own run; above 0 for a run of one point in separate processes after the search."""
    is_winner_run: bool = False
    """Whether it is a winner's last run: the largest accumulation that `Timing` allows, for `winner_s`. Without rungs,
    its numerics gate alone."""
    gate: GateSize | None = None
    """The numerics gate whose curves are recorded before anything is measured; None for none."""
    gate_micro_batch: int = 1
    """The most sequences in a micro-step of the gate where there are no rungs."""
    profile: BatchPoint | None = None
    """The point to profile instead of measuring; None for none."""
    incumbent_tokens_per_s: float | None = None
    """The recipe's best tokens/s so far: a rung that cannot reach it is stopped as `slow`. None in runs after the
    search.
    """
    incumbent_derived: bool = False
    """Whether that is what this trial's nodes would have shown of it, by their matmul peaks."""
    known_memory: tuple[MemoryPoint, ...] = ()
    """Peaks of this layout's rungs measured earlier, in a run that was cut short."""
    predicted_gib: tuple[tuple[int, float], ...] = ()
    """Micro-batches with the allocated peak that the cost model predicts; empty where it does not know the devices."""
    runs_one: bool = False
    """Whether its first rung runs even where no rung may start any more."""
    finds_largest: bool = False
    """Whether a command's rungs are searched for the largest that fits, which alone is measured."""
    tries_misfit: bool = False
    """Whether a rung that is predicted not to fit is run all the same."""
    cap_gib: float | None = None
    held_gib: float | None = None
    """GiB to which torch's allocator is held on a GPU, below what the device or the cap allows; None for no hold."""
    matmul_peak_tflops: float | None = None
    """The measured peak; None where the study has not measured it yet: then the workers do."""
    probe_s: float | None = None
    """Seconds for which the workers measure devices and links before the ladder; None where that is known."""
    datasheet_peak_tflops: float | None = None
    """The datasheet peak of a device in the recipe's compute precision; None where the catalogue lacks it."""
    stop_at_s: float | None = None
    """Moment after which no rung starts, by the monotonic clock of the driver's node, where the recorder is; the
    recorder tells workers how long that is.
    """
    commit: str = "unknown"
    engine_source: str = ""
    """The `trainers.spec.engines.source_hash` with which the study began, for an engine outside this project: workers
    must have the same.
    """
    environment: Mapping[str, str | None] = dataclasses.field(default_factory=dict[str, str | None])
    """Values of environment variables of a command, where its node has others; None for one that is not set."""
    timing: Timing = Timing()
    hang_floor_s: float = 60.0
    """A trial is hung after max(this, 10 x its slowest micro-step) without a micro-step."""
    first_step_s: float = 300.0
    """Seconds that building the model, compiling and the first micro-step of a rung may take."""

    @property
    def shares_nodes(self) -> bool:
        """Whether other trials may run on other devices of its nodes at the same time."""
        return self.node_share < 1

    def measurement(self, batch: BatchPoint, outcome: Outcome, **figures: Any) -> Measurement:
        """Returns the measurement of `batch` in this trial; `found` are its further fields."""
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
    """Returns how the gate's sequences are divided on the job's layout: as its own first rung, else as the job states,
    where that divides them; with at least two micro-steps where training accumulates gradients, which a gate of one
    would not test.

    Raises:
        ValueError: the data-parallel ranks do not share the sequences evenly, or they are too few for a pipeline.
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
