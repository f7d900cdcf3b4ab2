"""Computes a batch point's measurement from the ranks' windows; pure, so every rank gets the same result."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.data.mask_density import keys_per_query
from trainers.measuring.host_load import HostSampled
from trainers.measuring.ladder import step_time_s, with_headroom_gib
from trainers.measuring.sampling import Sampled
from trainers.records.job import Job
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shorter:
    """Steps with fewer micro-steps, timed beside a window's own steps. The slope between both is the time of a
    micro-step.
    """

    accum: int
    """Number of micro-steps of each step."""
    total_s: float
    """Seconds of a step on the slowest rank."""
    schedule_s: float
    """Seconds of a step without the optimizer's part."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TimedWindow:
    """A timed window on its slowest rank. All times are seconds per step; times of micro-steps are None if a schedule
    interleaves them.
    """

    total_s: float
    first_micro_s: float | None
    middle_micro_s: float | None
    last_micro_s: float | None
    optimizer_s: float
    schedule_s: float = 0.0
    """Seconds of everything before the optimizer's part of a step."""
    shorter: Shorter | None = None
    """Steps with fewer micro-steps, for a pipeline whose full accumulation is too long to be timed, and for its bubble.
    """
    sampled: tuple[Sampled | None, ...] = ()
    """Samples of each rank's device."""
    hosts: tuple[HostSampled | None, ...] = ()
    """Samples of each rank's node."""

    def full_s(self, batch: BatchPoint, accum: int) -> float:
        """Returns the seconds of a step at the batch point's accumulation, from timed steps of `accum` micro-steps."""
        if accum == batch.grad_accum:
            return self.total_s
        if self.shorter is not None:
            slope_s = (self.total_s - self.shorter.total_s) / (accum - self.shorter.accum)
            return self.total_s + slope_s * (batch.grad_accum - accum)
        # A schedule whose micro-steps are not marked is timed at its full accumulation.
        assert self.first_micro_s is not None and self.middle_micro_s is not None and self.last_micro_s is not None
        return step_time_s(
            batch.grad_accum, self.first_micro_s, self.middle_micro_s, self.last_micro_s, self.optimizer_s
        )

    def bubble(self, batch: BatchPoint, accum: int) -> float | None:
        """Returns the pipeline bubble: the share of a schedule that does not grow with the number of micro-steps, at
        the batch point's accumulation. It includes the exchange of gradients. None if only one accumulation was timed.
        """
        if self.shorter is None:
            return None
        slope_s = (self.schedule_s - self.shorter.schedule_s) / (accum - self.shorter.accum)
        whole_s = self.schedule_s + slope_s * (batch.grad_accum - accum)
        return 1 - batch.grad_accum * slope_s / whole_s


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """All timings of a batch point."""

    windows: Sequence[TimedWindow]
    void: Sequence[str]
    """Reason of each discarded window."""
    retries: int
    """Number of allocator retries in the windows, summed over ranks."""
    slow: str = ""
    """Reason why timing stopped early: the batch point cannot reach the incumbent. Empty otherwise."""


def judge(
    timed: Timed, losses: Sequence[float], memory: Sequence[Mapping[str, float]], min_windows: int
) -> tuple[Outcome, str]:
    """Returns the batch point's outcome and its reason.

    `memory` holds each rank's "reserved", "outside" and "limit", in GiB. Gradient norms that are not finite are
    ignored, because an fp16 loss scaler skips such steps and continues.
    """
    if not all(math.isfinite(loss) for loss in losses):
        first = next(i for i, loss in enumerate(losses) if not math.isfinite(loss))
        return Outcome.DIVERGED, f"the loss was {losses[first]} at step {first}"
    good, void = len(timed.windows), timed.void
    if good < min_windows:
        windows = f"{len(void)} of {len(void) + good} windows were void"
        return Outcome.FAILED, f"{windows}, and a time takes {min_windows}; the last one: {void[-1]}"
    if timed.retries:
        return Outcome.THRASH, f"{timed.retries} allocator retries in the timed windows"
    for rank, rank_memory in enumerate(memory):
        share = rank_memory["reserved"] / max(rank_memory["limit"], 1e-9)
        if rank_memory["reserved"] > with_headroom_gib(rank_memory["limit"], rank_memory["outside"]):
            return Outcome.THRASH, f"rank {rank} reserved {share:.0%} of its memory: no head-room is left"
    return (Outcome.SLOW, timed.slow) if timed.slow else (Outcome.OK, "")


def speed_fields(
    job: Job,
    batch: BatchPoint,
    windows: Sequence[TimedWindow],
    accum: int,
    peak: float | None,
    *,
    counts_flops: bool = True,
) -> Any:
    """Returns times and throughput of a batch point as fields of its measurement. `peak` is the measured matmul peak in
    TFLOP/s; the FLOPs of the recipe's model are left out without `counts_flops`.
    """
    recipe, datasheet = job.recipe, job.datasheet_peak_tflops
    full = [window.full_s(batch, accum) for window in windows]
    step_s = statistics.median(full) if full else None
    tokens_per_s = batch.global_batch(job.layout) * recipe.seq_len / step_s if step_s else None
    per_gpu = tokens_per_s / job.layout.world_size if tokens_per_s else None
    model_tflops = hardware_tflops = None
    if counts_flops and per_gpu:
        keys = keys_per_query(recipe)
        model_tflops = per_gpu * recipe.flops_per_token(keys_per_query=keys) / 1e12
        hardware_tflops = per_gpu * job.layout.hardware_flops_per_token(recipe, keys_per_query=keys) / 1e12
    low_s, high_s = quartiles(full)
    return {
        "pipeline_bubble": _median([window.bubble(batch, accum) for window in windows]),
        "measured_grad_accum": accum,
        "step_time_s": step_s,
        "step_time_low_s": low_s,
        "step_time_high_s": high_s,
        "step_time_derived": accum != batch.grad_accum,
        "windows_s": tuple(window.total_s for window in windows),
        "first_micro_step_s": _median([window.first_micro_s for window in windows]) if accum > 1 else None,
        "middle_micro_step_s": _median([window.middle_micro_s for window in windows]) if accum > 2 else None,
        "last_micro_step_s": _median([window.last_micro_s for window in windows]),
        "optimizer_step_s": _median([window.optimizer_s for window in windows]),
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": per_gpu,
        "model_tflops_per_gpu": model_tflops,
        "hardware_tflops_per_gpu": hardware_tflops,
        "matmul_peak_tflops": peak,
        "share_of_matmul_peak": model_tflops / peak if model_tflops and peak else None,
        "datasheet_peak_tflops": datasheet,
        "share_of_datasheet_peak": model_tflops / datasheet if model_tflops and datasheet else None,
    }


def memory_fields(memory: Sequence[Mapping[str, float]]) -> Any:
    """Returns the memory peaks (GiB) of a batch point as fields of its measurement: the largest rank's, with its
    number.
    """
    worst = max(range(len(memory)), key=lambda rank: max(memory[rank]["forward_backward"], memory[rank]["optimizer"]))
    peaks = memory[worst]
    return {
        "peak_allocated_gib": max(peaks["forward_backward"], peaks["optimizer"]),
        "peak_reserved_gib": max(rank_memory["reserved"] for rank_memory in memory),
        "peak_device_gib": max(rank_memory["reserved"] + rank_memory["outside"] for rank_memory in memory),
        "peak_host_gib": max(rank_memory["host"] for rank_memory in memory),
        "peak_forward_backward_gib": peaks["forward_backward"],
        "peak_optimizer_gib": peaks["optimizer"],
        "memory_rank": worst,
    }


def device_fields(windows: Sequence[TimedWindow]) -> Any:
    """Returns the devices' state as fields of a measurement; empty if nothing was sampled."""
    by_rank = [
        [sample for sample in rank if sample is not None] for rank in zip(*(w.sampled for w in windows), strict=True)
    ]
    busy = [statistics.fmean(sample.utilization_pct for sample in rank) for rank in by_rank if rank]
    by_window = [[sample for sample in window.sampled if sample is not None] for window in windows]
    clocks = [[sample.sm_clock_mhz for sample in window if sample.sm_clock_mhz is not None] for window in by_window]
    powers = [[sample.power_w for sample in window if sample.power_w is not None] for window in by_window]
    others = [[sample.others_gib for sample in window if sample.others_gib is not None] for window in by_window]
    sampled = any(clocks)
    return {
        "utilization_pct": statistics.fmean(busy) if busy else None,
        "utilization_by_device_pct": tuple(busy),
        "idle_devices": sum(value < 5 for value in busy),
        "sm_clock_mhz": tuple(min(clock, default=math.nan) for clock in clocks) if sampled else (),
        "power_w": tuple(sum(power) for power in powers) if sampled else (),
        "held_back": tuple(
            ", ".join(sorted({name for sample in window for name in sample.held_back})) for window in by_window
        )
        if sampled
        else (),
        "others_gib": tuple(max(other, default=math.nan) for other in others) if any(others) else (),
    }


def quartiles(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Returns the first and third quartile, within the range of the values; None for each if there are no values."""
    if len(values) < 2:
        return (values[0], values[0]) if values else (None, None)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _median(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None
