"""The columns of measurements, each declared once for the terminal, the HTML page and MLflow's tables."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from platform.common import text
from platform.report.summary import cost_of, days_of, head_room_gib, spread_pct
from platform.report.table import Column, percent, with_values
from platform.study.result.ranking import PointRuns
from trainers.records.journal import StudyHeader
from trainers.records.measurement import Measurement, Outcome

STAR = " *"
"""Mark of the winner."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRow:
    """A measurement as a table row, with the facts that reports show beside it."""

    run: Measurement
    header: StudyHeader
    """First line of the measurement's study."""
    point: PointRuns | None = None
    """All runs of the measurement's batch point."""
    is_best: bool = False
    choice: str = ""
    """Name of the criterion by which the row is the best, such as "most tokens/s"."""

    @property
    def std_tokens_per_s(self) -> float | None:
        """Standard deviation over the point's runs in fresh processes; None for fewer than two."""
        return self.point.std_tokens_per_s if self.point and self.point.runs else None

    @property
    def std_share(self) -> float | None:
        """`std_tokens_per_s` over the runs' median."""
        std, point = self.std_tokens_per_s, self.point
        return None if std is None or point is None else std / (point.median_tokens_per_s or 1.0)

    @property
    def ended(self) -> str:
        """The outcome; with the run's number if a confirmation run failed, and with a star for the winner."""
        is_lost_run = self.run.repeat and self.run.outcome is not Outcome.OK
        run = f" (run {self.run.repeat})" if is_lost_run else ""
        return f"{self.run.outcome.value}{run}{STAR * self.is_best}"


def _of_recipe(name: str) -> Callable[[MeasuredRow], Any]:
    return lambda row: None if name in row.run.recipe.unknown else getattr(row.run.recipe, name)


def _of_layout(name: str) -> Callable[[MeasuredRow], Any]:
    return lambda row: None if name in row.run.layout.unknown else getattr(row.run.layout, name)


def _derived(row: MeasuredRow) -> bool:
    return row.run.step_time_derived


def _engine(row: MeasuredRow) -> str | None:
    """Returns the engine; None for a user's command, whose engine is unknown."""
    return None if row.run.layout.unknown else row.run.layout.engine


def _held_gib(row: MeasuredRow) -> float | None:
    """Returns the memory that a command's processes held on the device; the memory allocated inside them is unknown."""
    return row.run.peak_device_gib if row.run.recipe.command else None


def _host_gib(row: MeasuredRow) -> float | None:
    """Returns the host memory of a rank's process where the layout keeps states there."""
    return row.run.peak_host_gib if row.run.layout.holds_on_host else None


_DECLARED: tuple[Column[MeasuredRow], ...] = (
    # What was run.
    Column(key="num_devices", title="{device}s", value=lambda row: row.run.num_devices, drop=4, point=True),
    Column(key="engine", title="engine", value=_engine, point=True, left=True),
    Column(key="sharding", title="sharding", value=lambda row: row.run.layout.rules.sharding(row.run.layout) or None,
           point=True, left=True),
    Column(key="degrees", title="degrees", value=lambda row: row.run.layout.degrees or None, drop=9, point=True,
           left=True),
    Column(key="compute_precision", title="precision", value=_of_recipe("compute_precision"), drop=1,
           point=True, left=True),
    Column(key="checkpointing", title="checkp.", value=_of_layout("checkpointing"), point=True, left=True),
    Column(key="options", title="options", value=lambda row: text.options(row.run.layout), point=True, left=True),
    Column(key="layout", title="layout", value=lambda row: row.run.layout.label, point=True, left=True, fold=24),
    Column(key="seq_len", title="seq.", value=lambda row: row.run.recipe.seq_len, drop=1, point=True),
    Column(key="micro_batch", title="MBS", value=lambda row: row.run.batch.micro_batch, point=True),
    Column(key="grad_accum", title="GAS", value=lambda row: row.run.batch.grad_accum, drop=7, point=True),
    Column(key="batch", title="MBS\nx GAS",
           value=lambda row: f"{row.run.batch.micro_batch} x {row.run.batch.grad_accum}"),
    Column(key="global_batch", title="global\nbatch", value=lambda row: row.run.global_batch, drop=1, point=True),
    Column(key="recipe", value=lambda row: row.run.trained_recipe.id),
    Column(key="choice", title="choice", value=lambda row: row.choice or None, left=True),
    # Speed.
    Column(key="step_time_s", title="step\ns", value=lambda row: row.run.step_time_s, derived=_derived, drop=6),
    Column(key="tokens_per_s", title="tokens\n/s", value=lambda row: row.run.tokens_per_s, derived=_derived),
    Column(key="tokens_per_s_per_gpu", title="tokens/s\n/{device}", value=lambda row: row.run.tokens_per_s_per_gpu,
           derived=_derived, drop=8),
    Column(key="derived", value=lambda row: row.run.step_time_derived),
    Column(key="spread_pct", title="±%", value=lambda row: spread_pct(row.run), shown="{:.1f}".format, drop=5,
           note="±%: half the distance of the step time's quartiles."),
    Column(key="repeat", value=lambda row: row.run.repeat),
    Column(key="runs", title="runs", value=lambda row: len(row.point.runs) if row.point else 0,
           shown=lambda runs: str(runs or ""), drop=12),
    Column(key="std_tokens_per_s", value=lambda row: row.std_tokens_per_s),
    Column(key="std_share", title="std\n%", value=lambda row: row.std_share, shown=percent, drop=12),
    # Use of the devices.
    Column(key="model_tflops_per_gpu", title="TFLOP/s\n/{device}", value=lambda row: row.run.model_tflops_per_gpu,
           derived=_derived, drop=10, note="TFLOP/s: model FLOPs, recomputation not counted."),
    Column(key="share_of_matmul_peak", title="% of\npeak", value=lambda row: row.run.share_of_matmul_peak,
           shown=percent, drop=3, note="% of peak: of the measured matmul peak."),
    Column(key="utilization_pct", title="util.\n%", value=lambda row: row.run.utilization_pct, drop=2),
    Column(key="peak_allocated_gib", title="GiB", value=lambda row: row.run.peak_allocated_gib,
           note="GiB: most allocated, on the fullest device."),
    Column(key="peak_device_gib", title="GiB\nheld", value=_held_gib,
           note="GiB held: by the command's processes on the fullest GPU, or for each CPU worker."),
    Column(key="peak_host_gib", title="GiB\nof host", value=_host_gib,
           note="GiB of host: most resident in the process of a rank, where states are in host memory."),
    Column(key="head_room_gib", title="head-room\nGiB", value=lambda row: head_room_gib(row.run, row.header)),
    Column(key="fullest_rank", value=lambda row: row.run.memory_rank),
    Column(key="fullest_stage", value=lambda row: text.stages(row.run.memory_stages)),
    Column(key="fullest_stages", title="fullest\nstage", value=lambda row: row.run.memory_stages,
           shown=lambda stages: ", ".join(map(str, stages)), drop=9),
    # The token budget.
    Column(key="days", title="days for\n{tokens}", value=lambda row: days_of(row.run, row.header.tokens),
           derived=_derived, drop=11),
    Column(key="cost", title="cost", derived=_derived, drop=11,
           value=lambda row: cost_of(row.run, row.header.tokens, row.header.price_per_gpu_h)),
    # How it ended.
    Column(key="ended", title="outcome", value=lambda row: row.ended, left=True),
    Column(key="outcome", value=lambda row: row.run.outcome.value),
    Column(key="reason", value=lambda row: row.run.reason),
)  # fmt: skip
_BY_KEY = {column.key: column for column in _DECLARED}

POINT = (
    *("layout", "micro_batch", "grad_accum", "engine", "sharding", "degrees", "checkpointing", "options"),
    *("num_devices", "seq_len", "global_batch", "compute_precision", "recipe"),
)
"""Keys of the columns of MLflow's tables that describe a batch point."""
RUN = (
    *("outcome", *POINT[:3], "tokens_per_s", "step_time_s", "derived", "repeat", "model_tflops_per_gpu"),
    *("share_of_matmul_peak", "peak_allocated_gib", "fullest_rank", "fullest_stage", "utilization_pct", "days"),
    *(*POINT[3:], "reason"),
)
"""Keys of the columns of MLflow's tables that describe a run."""
TERMINAL = (
    *("num_devices", "engine", "sharding", "degrees", "compute_precision", "checkpointing", "options", "seq_len"),
    *("micro_batch", "grad_accum", "global_batch", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu"),
    *("spread_pct", "runs", "std_share", "model_tflops_per_gpu", "share_of_matmul_peak", "utilization_pct"),
    *("peak_allocated_gib", "peak_device_gib", "peak_host_gib", "fullest_stages", "days", "cost", "ended"),
)
"""Keys of the columns on a terminal."""
CHOICES = (
    *("choice", "layout", "tokens_per_s", "peak_allocated_gib", "num_devices", "batch", "tokens_per_s_per_gpu"),
    *("head_room_gib", "days", "cost"),
)
"""Keys of the columns of the HTML page's tables of best points."""
_LAYOUT = frozenset({"engine", "sharding", "degrees", "checkpointing", "options"})


def select(keys: Iterable[str], header: StudyHeader | None = None) -> list[Column[MeasuredRow]]:
    """Returns the columns of these keys; with a `header`, titles name the study's kind of device and its tokens."""
    columns = [_BY_KEY[key] for key in keys]
    if header is None:
        return columns
    words = {"device": header.cluster.device_word, "tokens": text.count(header.tokens)}
    return [dataclasses.replace(column, title=column.title.format(**words)) for column in columns]


def on_terminal(header: StudyHeader, rows: Sequence[MeasuredRow], *, fixed: Sequence[str]) -> list[Column[MeasuredRow]]:
    """Returns the terminal's columns that have a value in some row. Columns in `fixed` are shown at any width."""
    columns = with_values(select(TERMINAL, header), rows)
    return [dataclasses.replace(column, drop=0) if column.key in fixed else column for column in columns]


def narrow(columns: Sequence[Column[MeasuredRow]]) -> list[Column[MeasuredRow]]:
    """Returns the columns with the parts of the layout joined into one column, whose text may be folded."""
    return [*select(["layout"]), *(column for column in columns if column.key not in _LAYOUT)]
