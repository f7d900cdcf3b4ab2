"""One plain line on how a search stands: for standard error where there is no terminal to draw on."""

import dataclasses
from collections import Counter
from collections.abc import Iterable

from platform.reports.text import duration, figure, plural
from trainers.layout import BatchPoint, Layout
from trainers.measurement import Measurement, Outcome


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What a progress line is made of."""

    trial: int
    """Number of the running trial, from 1; 0 before the first."""
    num_trials: int | None
    """Trials planned in all; None where the searcher has no plan."""
    layout: Layout | None
    """The running trial's; None between trials."""
    batch: BatchPoint | None
    """The running rung; None before the trial's first."""
    incumbent: Measurement | None
    outcomes: Counter[Outcome]
    elapsed_s: float
    left_s: float | None
    """Seconds that the time budget leaves; None without one."""
    gpu_s: float
    gpu_left_s: float | None = None
    """Device seconds that the budget leaves; None without one."""
    miniature: bool = False


def count_outcomes(measurements: Iterable[Measurement]) -> Counter[Outcome]:
    """How many measurements ended how."""
    return Counter(each.outcome for each in measurements)


def progress_line(progress: Progress) -> str:
    """The line, without a line end."""
    of = "" if progress.num_trials is None else f"/{progress.num_trials}"
    parts = [f"trial {progress.trial}{of}"]
    if progress.layout is not None:
        rung = (
            "starting" if progress.batch is None else f"MBS {progress.batch.micro_batch} x {progress.batch.grad_accum}"
        )
        parts[0] += f": {progress.layout.label}, {rung}"
    parts.append(_incumbent(progress.incumbent))
    parts.append(_outcomes(progress.outcomes))
    spent = duration(progress.elapsed_s)
    parts.append(spent if progress.left_s is None else f"{spent}, {duration(progress.left_s)} left")
    gpu = f"{figure(progress.gpu_s)} GPU-s"
    parts.append(gpu if progress.gpu_left_s is None else f"{gpu}, {figure(progress.gpu_left_s)} left")
    line = " | ".join(parts)
    return f"[miniature] {line}" if progress.miniature else line


def measurement_line(measurement: Measurement) -> str:
    """One finished batch point: outcome first, then what was run and its figure or reason."""
    point = f"{measurement.layout.label}, MBS {measurement.batch.micro_batch} x {measurement.batch.grad_accum}"
    mark = "[miniature] " if measurement.miniature else ""
    parts = [f"{mark}{measurement.outcome.value}: {point}"]
    if measurement.tokens_per_s is not None:
        tilde = "~" if measurement.step_time_derived else ""
        parts.append(f"{figure(measurement.tokens_per_s)}{tilde} tokens/s")
    if measurement.peak_allocated_gib is not None:
        parts.append(f"{figure(measurement.peak_allocated_gib)} GiB")
    if measurement.outcome is not Outcome.OK and measurement.reason:
        words = " ".join(measurement.reason.split())
        parts.append(words if len(words) <= 200 else words[:197] + "...")
    return " | ".join(parts)


def _incumbent(best: Measurement | None) -> str:
    if best is None or best.tokens_per_s is None:
        return "best: none yet"
    point = f"{best.layout.label}, MBS {best.batch.micro_batch}"
    return f"best: {figure(best.tokens_per_s)}{'~' if best.step_time_derived else ''} tokens/s ({point})"


def _outcomes(outcomes: Counter[Outcome]) -> str:
    tried = sum(number for outcome, number in outcomes.items() if outcome is not Outcome.SKIPPED)
    if not tried and not outcomes[Outcome.SKIPPED]:
        return "nothing measured yet"
    each = ", ".join(f"{outcomes[outcome]} {outcome.value}" for outcome in Outcome if outcomes[outcome])
    return f"{plural(tried, 'measurement')}: {each}"
