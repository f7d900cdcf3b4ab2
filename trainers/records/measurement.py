"""`Measurement` and `Outcome`: a (recipe, layout, batch point) with its figures."""

import dataclasses
import enum
import functools
from collections.abc import Mapping

from trainers.spec.batch import BatchPoint
from trainers.spec.codec import identity
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.stages import bubble_of_equal_stages, stages_at


class Outcome(enum.StrEnum):
    """The outcome of a batch point."""

    OK = "ok"
    THRASH = "thrash"
    """It ran, but with allocator retries or without head-room, so its speed is not reliable."""
    OOM = "oom"
    SLOW = "slow"
    """It was stopped, because its upper bound was below the incumbent. The steps timed until then are reliable."""
    DIVERGED = "diverged"
    HUNG = "hung"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It never ran: predicted infeasible, with the reason."""


TIMED = frozenset({Outcome.OK, Outcome.SLOW})
"""Outcomes with head-room in memory, so that their step time counts."""
ENDS_LADDER = frozenset({Outcome.THRASH, Outcome.OOM, Outcome.DIVERGED, Outcome.HUNG, Outcome.FAILED})
"""Outcomes after which no larger micro-batch of the same candidate is worth running."""


SETTINGS, TRAINING_STATE = "settings in effect", "training state"
"""Names of abilities: an engine without the first is not checked against the request; one without the second has no
numerics gate.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """The conditions of a measurement, without which its figures are meaningless."""

    device: str
    """Device name as the driver reports it, such as "NVIDIA H200", or the processor's."""
    device_memory_gib: float
    """Memory of one device."""
    num_nodes: int
    versions: Mapping[str, str]
    """Versions of Python, torch, CUDA, cuDNN, NCCL, driver, transformers, deepspeed, ray."""
    environment: Mapping[str, str]
    """Variables that affect speed or mathematics (allocator, NCCL, TF32), as set on rank 0."""
    commit: str
    """Commit of this project, with "+dirty" if the tree had changes; "unknown" outside a checkout."""
    warnings: tuple[str, ...] | None = None
    """Warnings in rank 0's process, each once; None in measurements that are older than this field."""
    engine_lacks: tuple[str, ...] = ()
    """Names of the abilities that an engine outside this project lacks (`trainers.engines.stepper.ABILITIES`)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One batch point of a trial, measured or not. Times are the slowest rank's, memory the largest rank's."""

    recipe: Recipe
    layout: Layout
    batch: BatchPoint
    outcome: Outcome
    trial_id: str = ""
    repeat: int = 0
    """0 for the search's run; 1, 2, ... for further runs of the same point in separate processes."""
    addresses: tuple[str, ...] = ()
    """Addresses of its nodes, each once; empty in measurements that are older than this field."""
    beside: tuple[str, ...] = ()
    """Ids of the trials that ran at any time while it did."""
    measured_grad_accum: int = 0
    """Micro-steps of a timed step; if below `batch.grad_accum`, the step time is derived."""

    reason: str = ""
    """Reason why it is not `ok`, in one sentence; empty if it is."""
    remark: str = ""
    """Reason to doubt the figures of a command's run, as a clause; empty if there is none."""
    untried_micro_batch: int = 0
    """The largest micro-batch of a command that was not tried for want of time, and may fit; 0 if there is none."""
    phase: str = ""
    """The phase in which it ended: "init", "forward_backward", "optimizer"."""
    rank: int | None = None
    """The rank that ran out of memory, hung or failed."""
    asked_gib: float | None = None
    allocated_gib: float | None = None
    reserved_gib: float | None = None
    """GiB requested at an out-of-memory error, and GiB that the allocator held at that moment."""

    step_time_s: float | None = None
    """Seconds of one optimizer step at `batch.grad_accum`: median over windows."""
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    """First and third quartile over windows."""
    step_time_derived: bool = False
    """Whether `step_time_s` was derived from the parts of a step with fewer micro-steps."""
    windows_s: tuple[float, ...] = ()
    """Seconds per measured step (of `measured_grad_accum` micro-steps) in each timed window."""
    steps_per_window: int = 0
    void_windows: tuple[str, ...] = ()
    """Reason of each discarded window."""
    warmup_steps: int = 0
    first_micro_step_s: float | None = None
    """Seconds of the first micro-step of an accumulation."""
    middle_micro_step_s: float | None = None
    """Mean seconds of the micro-steps between the first and the last."""
    last_micro_step_s: float | None = None
    """Seconds of the last micro-step of an accumulation, gradient exchange included."""
    optimizer_step_s: float | None = None
    pipeline_bubble: float | None = None
    """Share of a pipeline's schedule at `batch.grad_accum` in which a stage waits: the part that does not grow with the
    accumulation, from the slope between two accumulations.
    """
    startup_s: float | None = None
    """Seconds from the worker's first line to the first micro-batch; only for a trial's first batch point."""
    import_s: float | None = None
    """Seconds of `startup_s` spent on importing the engine's libraries."""
    compile_s: float | None = None
    sdpa_kernel: str = ""
    """Kernels of scaled_dot_product_attention: "flash", "efficient", "cudnn" or "math", joined by "+" if several; empty
    for another attention, and in measurements that are older than this field.
    """

    tokens_per_s: float | None = None
    """Tokens/s over all devices."""
    tokens_per_s_per_gpu: float | None = None
    model_tflops_per_gpu: float | None = None
    """Model TFLOP/s by the "products" convention, without recomputation."""
    hardware_tflops_per_gpu: float | None = None
    """TFLOP/s including recomputation."""
    matmul_peak_tflops: float | None = None
    """Peak measured on the same device in the recipe's compute precision."""
    share_of_matmul_peak: float | None = None
    datasheet_peak_tflops: float | None = None
    """Peak from the hardware catalogue; None for CPUs and unknown devices."""
    share_of_datasheet_peak: float | None = None

    peak_allocated_gib: float | None = None
    peak_reserved_gib: float | None = None
    peak_device_gib: float | None = None
    """Device memory in use at the peak, including context and libraries."""
    peak_host_gib: float | None = None
    """Most host memory that a rank's process had resident since it began, libraries, page-locked states and, without
    GPUs, tensors included; None for commands and in measurements that are older than this field.
    """
    peak_forward_backward_gib: float | None = None
    peak_optimizer_gib: float | None = None
    """Allocated peaks by phase."""
    memory_rank: int | None = None
    alloc_retries: int = 0
    cap_gib: float | None = None
    """The limit given by --device-memory-gib."""
    utilization_pct: float | None = None
    """Share of time in which a device was busy, averaged over devices and windows."""
    idle_devices: int = 0
    """Number of devices under 5 % utilization in the windows."""
    utilization_by_device_pct: tuple[float, ...] = ()
    """Mean utilization over windows, by rank."""
    sm_clock_mhz: tuple[float, ...] = ()
    """Mean clock of the slowest device in each timed window."""
    power_w: tuple[float, ...] = ()
    """Mean power of all devices together in each timed window."""
    held_back: tuple[str, ...] = ()
    """NVML's reason for a lowered clock in each timed window, such as "power cap"; "" for none."""
    others_gib: tuple[float, ...] = ()
    """GiB that other processes held on a device after each timed window, the largest over devices; empty if unreadable,
    and in measurements that are older than this field.
    """
    others_busy_pct: tuple[float, ...] = ()
    """Share of the processors that other processes used in each timed window, on the busiest node."""
    steal_pct: tuple[float, ...] = ()
    """Share of the processors that the hypervisor gave to other machines in each timed window."""
    cpu_clock_mhz: tuple[float, ...] = ()
    """Mean clock of the slowest node's processors after each timed window; empty if unreadable."""
    load_average: float | None = None
    """One-minute load average of the busiest node after the last window."""

    losses: tuple[float, ...] = ()
    """Mean loss over the global batch for each step, warm-up included."""
    grad_norms: tuple[float, ...] = ()
    step_times_s: tuple[float, ...] = ()
    """Seconds of each optimizer step, warm-up included."""
    conditions: Conditions | None = None

    @property
    def id(self) -> str:
        """Hash of recipe, layout, batch point and repeat; figures do not change it."""
        return identity_of(self.recipe, self.layout, self.batch, self.repeat)

    @property
    def pipeline_bubble_by_formula(self) -> float:
        """The bubble of a pipeline with equally long stages; 0 without a pipeline."""
        return bubble_of_equal_stages(self.layout, self.batch.grad_accum)

    @property
    def memory_stages(self) -> tuple[int, ...]:
        """Indices of the pipeline stages on the rank `memory_rank`; empty without a pipeline."""
        return () if self.memory_rank is None else stages_at(self.layout, self.memory_rank)

    @property
    def global_batch(self) -> int:
        return self.batch.global_batch(self.layout)

    @property
    def micro_step_s(self) -> float | None:
        """Seconds that a further micro-step adds to the step; None if too few micro-steps were timed."""
        if self.middle_micro_step_s is not None:
            return self.middle_micro_step_s if self.measured_grad_accum > 2 else None
        if None in (self.pipeline_bubble, self.optimizer_step_s, self.step_time_s):
            return None
        assert self.pipeline_bubble is not None and self.optimizer_step_s is not None and self.step_time_s is not None
        return (self.step_time_s - self.optimizer_step_s) * (1 - self.pipeline_bubble) / self.batch.grad_accum

    @property
    def tokens_per_timed_step(self) -> int:
        """Tokens of a timed step over all ranks; fewer than a full step's if the step time is derived."""
        timed = dataclasses.replace(self.batch, grad_accum=self.measured_grad_accum or self.batch.grad_accum)
        return timed.global_batch(self.layout) * self.recipe.seq_len

    @property
    def trained_recipe(self) -> Recipe:
        """The recipe that the point trains, with its global batch. With a fixed accumulation, points of one recipe
        compete for speed, but train different recipes if their global batches differ.
        """
        return self.recipe.of_batch(self.global_batch) if self.recipe.grad_accum else self.recipe

    @property
    def num_devices(self) -> int:
        return self.layout.world_size

    @property
    def held_back_by(self) -> tuple[str, ...]:
        """The reasons of `held_back`, each once."""
        return tuple(sorted({reason for reasons in self.held_back if reasons for reason in reasons.split(", ")}))

    @property
    def most_others_gib(self) -> float:
        """The largest of `others_gib`; 0 if no other process was seen, or none was recorded."""
        return max((gib for gib in self.others_gib if gib > 0), default=0.0)

    @property
    def ran_out_on_host(self) -> bool:
        """Whether host memory ran out under a layout with states there, which says nothing about the device's."""
        return self.outcome is Outcome.OOM and self.allocated_gib is None and self.layout.holds_on_host

    @property
    def miniature(self) -> bool:
        """Whether a miniature ran in place of the requested model."""
        return self.recipe.miniature_of is not None


def identity_of(recipe: Recipe, layout: Layout, batch: BatchPoint, repeat: int = 0) -> str:
    return _identity((recipe.id, layout.id, batch.micro_batch, batch.grad_accum, repeat))


# Cached, because the search, its display and the mirror ask for it repeatedly.
_identity = functools.lru_cache(maxsize=1 << 16)(identity)


def days_for_tokens(tokens: float, tokens_per_s: float) -> float:
    """Returns the days of training on `tokens` at `tokens_per_s` (all devices together)."""
    return tokens / tokens_per_s / 86400
