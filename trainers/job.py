"""`Job`: all that one trial needs to know, as the JSON that travels through Tune and Train to the workers."""

import dataclasses

from trainers.cluster import Cluster
from trainers.layout import BatchPoint, Layout
from trainers.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """How a rung is timed."""

    warmup_steps: int = 2
    min_windows: int = 3
    max_windows: int = 8
    window_s: float = 0.5
    """A window holds as many optimizer steps as take about this long, at least one."""
    rung_s: float = 6.0
    """No further window starts once the windows of a rung took this long."""
    peak_s: float = 0.5
    """Seconds of matrix products behind the measured peak, once a study."""
    longest_step_s: float = 20.0
    """A confirming run measures the largest accumulation whose step stays within this."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPoint:
    """Allocated peaks of one rung that already ran, by phase: what the next rung's prediction is drawn from."""

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
    """Batch points to measure, upwards."""
    cluster: Cluster
    cpus_per_worker: float
    repeat: int = 0
    """Above 0 for a confirming run, which measures at the largest accumulation that `Timing` allows."""
    known_memory: tuple[MemoryPoint, ...] = ()
    """Rungs of this layout measured before, in a run that was cut short."""
    cap_gib: float | None = None
    matmul_peak_tflops: float | None = None
    """None where the study has not measured it yet: then rank 0 does."""
    stop_at_unix_s: float | None = None
    """No rung starts after this moment."""
    commit: str = "unknown"
    timing: Timing = Timing()
    hang_floor_s: float = 60.0
    """A trial is hung after max(this, 10 x its slowest micro-step) without a micro-step."""
    first_step_s: float = 300.0
    """What building the model, compiling and the first micro-step of a rung may take."""
