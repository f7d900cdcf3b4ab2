"""The columns of the measurement table: what was run, then its figures."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from platform.common import text
from platform.report.summary import cost_of, days_of
from platform.study.result.ranking import PointRuns
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.cluster import Cluster

GLOBAL_BATCH = "global\nbatch"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column: its title, and its cell for each row."""

    title: str
    cell: Callable[[Measurement], str]
    drop: int = 0
    """Order in which columns are dropped for lack of width: 1 first, 0 never."""
    point: bool = False
    """Whether the column describes what was run, and so applies to failures, rather than a figure."""
    left: bool = False


def columns_of(
    cluster: Cluster,
    tokens: float | None,
    price_per_gpu_h: float | None,
    runs: Mapping[str, PointRuns],
    *,
    pipelines: bool = False,
) -> list[Column]:
    """Returns all columns; those of days and cost only with a budget of `tokens`. `runs` are the points that were run
    again, by the id of the run that stands for each. With `pipelines` some rows have stages.
    """
    return [
        *_of_point(cluster.device_word),
        *_of_speed(cluster.device_word),
        *_of_runs(runs),
        *_of_use(cluster.device_word),
        *([Column(title="fullest\nstage", cell=_fullest_stage, drop=9)] if pipelines else []),
        *_of_budget(tokens, price_per_gpu_h),
        Column(title="outcome", cell=outcome, left=True),
    ]


def _of_point(device: str) -> list[Column]:
    """Returns the columns that describe what was run."""
    return [
        Column(title=f"{device}s", cell=lambda m: str(m.num_devices), drop=4, point=True),
        Column(title="engine", cell=lambda m: m.layout.engine, point=True, left=True),
        Column(title="sharding", cell=lambda m: m.layout.rules.sharding(m.layout), point=True, left=True),
        Column(title="degrees", cell=lambda m: m.layout.degrees, drop=9, point=True, left=True),
        Column(title="precision", cell=lambda m: m.recipe.compute_precision, drop=1, point=True, left=True),
        Column(title="checkp.", cell=lambda m: m.layout.checkpointing, point=True, left=True),
        Column(title="options", cell=lambda m: text.options(m.layout), point=True, left=True),
        Column(title="seq.", cell=lambda m: str(m.recipe.seq_len), drop=1, point=True),
        Column(title="MBS", cell=lambda m: str(m.batch.micro_batch), point=True),
        Column(title="GAS", cell=lambda m: str(m.batch.grad_accum), drop=7, point=True),
        Column(title=GLOBAL_BATCH, cell=lambda m: str(m.global_batch), drop=1, point=True),
    ]


def _of_speed(device: str) -> list[Column]:
    """Returns the columns on the speed of a step."""
    return [
        Column(title="step\ns", cell=lambda m: _marked(m.step_time_s, m), drop=6),
        Column(title="tokens\n/s", cell=lambda m: _marked(m.tokens_per_s, m)),
        Column(title=f"tokens/s\n/{device}", cell=lambda m: _marked(m.tokens_per_s_per_gpu, m), drop=8),
        Column(title="±%", cell=_spread, drop=5),
    ]


def _of_runs(runs: Mapping[str, PointRuns]) -> list[Column]:
    """Returns the columns on how often a point was run and how far its runs differ, where any was run again."""

    def deviation(measurement: Measurement) -> str:
        point = runs.get(measurement.id)
        if point is None or point.std_tokens_per_s is None:
            return ""
        return f"{100 * point.std_tokens_per_s / (point.median_tokens_per_s or 1.0):.1f}"

    if not runs:
        return []
    columns = [Column(title="runs", cell=lambda m: str(len(runs[m.id].runs)) if m.id in runs else "", drop=12)]
    if any(point.std_tokens_per_s is not None for point in runs.values()):
        columns.append(Column(title="std\n%", cell=deviation, drop=12))
    return columns


def _of_use(device: str) -> list[Column]:
    """Returns the columns on how well the device was used."""

    def percent(share: float | None) -> str:
        return "" if share is None else f"{100 * share:.1f}"

    return [
        Column(title=f"TFLOP/s\n/{device}", cell=lambda m: _marked(m.model_tflops_per_gpu, m), drop=10),
        Column(title="% of\npeak", cell=lambda m: percent(m.share_of_matmul_peak), drop=3),
        Column(title="util.\n%", cell=lambda m: text.figure(m.utilization_pct), drop=2),
        Column(title="GiB", cell=lambda m: text.figure(m.peak_allocated_gib)),
    ]


def _of_budget(tokens: float | None, price_per_gpu_h: float | None) -> list[Column]:
    """Returns the columns of days and cost for a budget of `tokens`, as far as it and the price are known."""

    def derived(value: float | None, measurement: Measurement) -> str:
        return "" if value is None else _marked(value, measurement)

    if tokens is None:
        return []
    title = f"days for\n{text.count(tokens)}"
    columns = [Column(title=title, cell=lambda m: derived(days_of(m, tokens), m), drop=11)]
    if price_per_gpu_h is not None:
        columns.append(Column(title="cost", cell=lambda m: derived(cost_of(m, tokens, price_per_gpu_h), m), drop=11))
    return columns


def _marked(value: float | None, measurement: Measurement) -> str:
    """Returns a figure, with a tilde where it is derived from the parts of a shorter step."""
    return text.figure(value) + ("~" if measurement.step_time_derived else "")


def _fullest_stage(measurement: Measurement) -> str:
    """Returns the stages of the rank with most memory, such as "1, 5"; empty without a pipeline."""
    return ", ".join(map(str, measurement.memory_stages))


def narrow(columns: Sequence[Column]) -> list[Column]:
    """Returns the columns with the layout's parts joined into one, which may be folded over lines."""
    parts = {"engine", "sharding", "degrees", "checkp.", "options"}
    other_columns = [column for column in columns if column.title not in parts]
    return [Column(title="layout", cell=lambda m: m.layout.label, point=True, left=True), *other_columns]


def _spread(measurement: Measurement) -> str:
    low, high, step = measurement.step_time_low_s, measurement.step_time_high_s, measurement.step_time_s
    return "" if low is None or high is None or not step else f"{100 * (high - low) / (2 * step):.1f}"


def outcome(measurement: Measurement) -> str:
    """Returns the outcome, for a point that failed in one of its runs with that run's number."""
    is_lost_run = measurement.repeat and measurement.outcome is not Outcome.OK
    run = f" (run {measurement.repeat})" if is_lost_run else ""
    return f"{measurement.outcome.value}{run}"


def flat(title: str) -> str:
    """Returns a column's title on one line."""
    return title.replace("\n", " ").replace(" /", "/")
