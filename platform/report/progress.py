"""The state of a search as a value and as a line of text."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

from platform.common.text import duration, figure, plural
from platform.report.summary import pipeline_words
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrialProgress:
    """The state of one running trial."""

    layout: Layout
    ladder: tuple[int, ...]
    """The trial's micro-batches."""
    profiles: bool = False
    """Whether the trial profiles instead of measuring."""
    nodes: tuple[str, ...] = ()
    """Addresses of the nodes assigned to the trial; empty if it may run on any."""
    batch: BatchPoint | None = None
    """The running rung; None before the first."""
    rungs: Mapping[int, Outcome] = dataclasses.field(default_factory=dict[int, Outcome])
    """Outcomes of finished rungs, by micro-batch."""
    running_s: float = 0.0
    """Seconds since the trial began."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SearchProgress:
    trial: int
    """Number of layouts tried, running ones included; a layout tried again counts once."""
    num_trials: int | None
    """Number of layouts that the search may try; None if the searcher has no plan."""
    final_run: int = 0
    """Number of the last confirmation run, from 1; 0 while the search explores."""
    running: tuple[TrialProgress, ...] = ()
    """The running trials; the one with the latest news is last."""
    incumbent: Measurement | None
    """The incumbent of the recipe being searched."""
    outcomes: Counter[Outcome]
    elapsed_s: float
    left_s: float | None
    """Seconds left in the time budget; None without one."""
    kept_s: float = 0.0
    """Part of `left_s` that is reserved for confirmation runs."""
    gpu_s: float
    gpu_left_s: float | None = None
    """Device seconds left in the budget; None without one."""
    device: str = "GPU"
    """Word for a device in sentences."""
    title: str = ""
    """The space and its devices."""
    recipe: str = ""
    """The recipe being searched, by the words that distinguish it; "" if there is only one."""
    to_go: str = ""
    """Estimated time of the remaining trials, from those so far; "" before the first ended."""
    last: tuple[Measurement, ...] = ()
    """The last measurements in order, at most as many as a screen shows."""
    predicted: tuple[str, ...] = ()
    """The prediction of each of `last`; empty if the cost model does not know the device."""
    model_error: str = ""
    """The model's error so far; "" if unknown."""
    lagging: tuple[str, ...] = ()
    """Addresses of the nodes that are left out because they lag."""
    miniature: bool = False


def count_outcomes(measurements: Iterable[Measurement]) -> Counter[Outcome]:
    return Counter(measurement.outcome for measurement in measurements)


def progress_line(progress: SearchProgress) -> str:
    """Returns the progress as a line, without a line end."""
    of_planned = "" if progress.num_trials is None else f"/{progress.num_trials}"
    parts = [f"final run {progress.final_run}" if progress.final_run else f"trial {progress.trial}{of_planned}"]
    if progress.running:
        trial = progress.running[-1]
        starting = "starting" if trial.ladder else "to be profiled" if trial.profiles else "numerics gate"
        rung = starting if trial.batch is None else f"MBS {trial.batch.micro_batch} x {trial.batch.grad_accum}"
        parts[0] += f": {trial.layout.label}, {rung}"
        if others := len(progress.running) - 1:
            parts[0] += f", beside {plural(others, 'other')}"
    parts.append(f"best{progress.recipe and f' of {progress.recipe}'}: {best_point(progress.incumbent)}")
    parts.append(_outcomes(progress.outcomes))
    parts.append(spent(progress))
    parts += [words] if (words := kept_words(progress)) else []
    line = " | ".join(parts)
    return f"[miniature] {line}" if progress.miniature else line


def measurement_line(measurement: Measurement) -> str:
    """Returns the line of a finished batch point: outcome, point, and its figures or reason."""
    point = f"{measurement.layout.label}, MBS {measurement.batch.micro_batch} x {measurement.batch.grad_accum}"
    mark = "[miniature] " if measurement.miniature else ""
    parts = [f"{mark}{measurement.outcome.value}: {point}"]
    if measurement.tokens_per_s is not None:
        tilde = "~" if measurement.step_time_derived else ""
        parts.append(f"{figure(measurement.tokens_per_s)}{tilde} tokens/s")
    if measurement.peak_allocated_gib is not None:
        parts.append(f"{figure(measurement.peak_allocated_gib)} GiB{pipeline_words(measurement)}")
    if measurement.most_others_gib:
        parts.append(f"other processes held {figure(measurement.most_others_gib)} GiB of a GPU")
    if measurement.outcome is not Outcome.OK and measurement.reason:
        words = " ".join(measurement.reason.split())
        parts.append(words if len(words) <= 200 else words[:197] + "...")
    return " | ".join(parts)


def spent(progress: SearchProgress) -> str:
    """Returns as text the time and device seconds spent, and left in the budgets."""
    time = duration(progress.elapsed_s)
    if progress.left_s is not None:
        time += f", {duration(progress.left_s)} left"
    gpu = f"{figure(progress.gpu_s)} {progress.device}-s"
    return f"{time} | {gpu}" if progress.gpu_left_s is None else f"{time} | {gpu}, {figure(progress.gpu_left_s)} left"


def kept_words(progress: SearchProgress) -> str:
    return f"{duration(progress.kept_s)} of it kept for final runs" if progress.left_s and progress.kept_s else ""


def best_point(best: Measurement | None) -> str:
    """Returns the incumbent's speed and point as text."""
    if best is None or best.tokens_per_s is None:
        return "none yet"
    point = f"{best.layout.label}, MBS {best.batch.micro_batch}"
    return f"{figure(best.tokens_per_s)}{'~' if best.step_time_derived else ''} tokens/s ({point})"


def set_apart(recipe: Recipe, others: Iterable[Recipe]) -> str:
    """Returns the words of the recipe's label that not all of `others` have; the whole label if none is left."""
    words = recipe.label.split(", ")
    shared = set(words).intersection(*(other.label.split(", ") for other in others))
    return ", ".join(word for word in words if word not in shared) or recipe.label


def _outcomes(outcomes: Counter[Outcome]) -> str:
    num_measured = sum(number for outcome, number in outcomes.items() if outcome is not Outcome.SKIPPED)
    if not num_measured and not outcomes[Outcome.SKIPPED]:
        return "nothing measured yet"
    outcome_counts = ", ".join(f"{outcomes[outcome]} {outcome.value}" for outcome in Outcome if outcomes[outcome])
    return f"{plural(num_measured, 'measurement')}: {outcome_counts}"
