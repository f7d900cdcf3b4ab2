"""Measured days, device-days, efficiency and cost by number of devices, from the journals of several studies.

Each number of devices has its own winner: the fastest layout on two devices is seldom the fastest on four.
"""

import dataclasses
from collections.abc import Sequence

from platform.common.text import count
from platform.report.summary import cost_of, days_of, nearest
from platform.report.table import Column, Table, with_values
from platform.study.result.caveats import names_of
from platform.study.result.coverage import Coverage
from platform.study.result.result import StudyResult
from trainers.records.measurement import Measurement
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScalingRow:
    """One recipe on one number of devices."""

    study: str
    recipe: Recipe
    num_devices: int
    tokens: float
    price_per_gpu_h: float | None
    best: Measurement | None
    """The winner; None if nothing fits or nothing was measured yet."""
    reason: str = ""
    """Reason why there is no winner; "" if there is one."""
    coverage: Coverage | None = None
    """The number of layouts tried and the rest; None if the journal states no plan."""
    efficiency: float | None = None
    """Tokens/s a device over that on the fewest devices with a winner."""
    runs: int = 0
    """Number of confirmation runs behind the figure; 0 if it is the search's own."""
    caveats: str = ""
    """Names of the winner's caveats; "" if it has none."""
    gate: str = ""
    """The numerics gate's verdict on the winner, `passed` or `failed`; "" without one."""

    @property
    def tokens_per_s(self) -> float | None:
        return None if self.best is None else self.best.tokens_per_s

    @property
    def is_derived(self) -> bool:
        return self.best is not None and self.best.step_time_derived

    @property
    def days(self) -> float | None:
        return None if self.best is None else days_of(self.best, self.tokens)

    @property
    def device_days(self) -> float | None:
        return None if self.days is None else self.days * self.num_devices

    @property
    def cost(self) -> float | None:
        return None if self.best is None else cost_of(self.best, self.tokens, self.price_per_gpu_h)

    @property
    def tokens_per_s_per_device(self) -> float | None:
        return self.tokens_per_s and self.tokens_per_s / self.num_devices

    @property
    def winner_or_reason(self) -> str:
        """The fastest layout with its batch, or the reason why there is none."""
        if self.best is None:
            return self.reason
        batch, caveats = self.best.batch, f" ({self.caveats})" if self.caveats else ""
        return f"{self.best.layout.label}, micro-batch {batch.micro_batch} x {batch.grad_accum}{caveats}"


_DECLARED: tuple[Column[ScalingRow], ...] = (
    Column(key="gpus", title="{device}s", value=lambda row: row.num_devices),
    Column(key="recipe", value=lambda row: row.recipe.label),
    Column(key="layout", value=lambda row: row.best and row.best.layout.label),
    Column(key="micro_batch", value=lambda row: row.best and row.best.batch.micro_batch),
    Column(key="grad_accum", value=lambda row: row.best and row.best.batch.grad_accum),
    Column(key="tokens", value=lambda row: row.tokens),
    Column(key="days", title="days for\n{tokens}", value=lambda row: row.days, blank="-",
           derived=lambda row: row.is_derived),
    Column(key="gpu_days", title="{device}-\ndays", value=lambda row: row.device_days, blank="-",
           derived=lambda row: row.is_derived),
    Column(key="tokens_per_s", title="tokens/s", value=lambda row: row.tokens_per_s, blank="-",
           derived=lambda row: row.is_derived),
    Column(key="tokens_per_s_per_gpu", title="tokens/s\n/{device}", value=lambda row: row.tokens_per_s_per_device,
           blank="-", derived=lambda row: row.is_derived),
    Column(key="efficiency", title="efficiency", value=lambda row: row.efficiency, shown="{:.0%}".format, blank="-"),
    Column(title="layouts\ntried", blank="-",
           value=lambda row: row.coverage and f"{row.coverage.num_tried} of {row.coverage.num_layouts}"),
    Column(key="runs", title="runs", value=lambda row: row.runs, shown=lambda runs: str(runs or "-")),
    Column(key="gate", title="gate", value=lambda row: row.gate, shown=lambda gate: gate or "-"),
    Column(key="cost", title="cost", value=lambda row: row.cost, blank="-", derived=lambda row: row.is_derived),
    Column(key="reason", value=lambda row: row.reason),
    Column(key="study", value=lambda row: row.study),
    Column(key="caveats", value=lambda row: row.caveats),
    Column(title="fastest layout", value=lambda row: row.winner_or_reason, left=True, fold=24),
)  # fmt: skip
_BY_KEY = {column.key: column for column in _DECLARED}
RECORDED = [
    _BY_KEY[key]
    for key in (
        *("gpus", "recipe", "layout", "micro_batch", "grad_accum", "tokens_per_s", "tokens_per_s_per_gpu", "tokens"),
        *("days", "gpu_days", "efficiency", "cost", "reason", "study", "runs", "gate", "caveats"),
    )
]
"""The columns of `scaling.csv`."""
_ALWAYS = ("runs", "gate")
"""Columns shown even without values, because their absence is a result."""


def scaling_table(group: Sequence[ScalingRow], device: str) -> Table[ScalingRow]:
    """Returns a recipe's table for people, without empty columns such as days and cost of a miniature.

    `device` is the word for a device.
    """
    budgets = {count(row.tokens) for row in group}
    words = {"device": device, "tokens": budgets.pop() if len(budgets) == 1 else "its tokens"}
    titled = [dataclasses.replace(column, title=column.title.format(**words)) for column in _DECLARED if column.title]
    filled = with_values(titled, group)
    return Table(columns=[column for column in titled if column in filled or column.key in _ALWAYS], rows=group)


def models_table(rows: Sequence[ScalingRow], device: str) -> Table[ScalingRow]:
    """Returns the table of several recipes with one row each, which are not compared."""
    table = scaling_table(rows, device)
    study: Column[ScalingRow] = Column(title="study", value=lambda row: row.study, left=True)
    label: Column[ScalingRow] = Column(title="recipe", value=lambda row: row.recipe.label, left=True, fold=24)
    return Table(columns=[study, label, *(column for column in table.columns if column.key != "efficiency")], rows=rows)


def scaling_notes(group: Sequence[ScalingRow]) -> list[str]:
    """Returns notes on rows whose figures have different evidence, so that they are not directly comparable."""
    won_rows = [row for row in group if row.best is not None]
    notes: list[str] = []
    if any(row.is_derived for row in won_rows):
        notes.append("~ derived from the parts of a step with fewer micro-steps")
    if any(not row.runs for row in won_rows):
        notes.append("runs: in fresh processes; - is a figure of the search alone")
    if any(not row.gate for row in won_rows):
        notes.append("gate: - is a winner whose loss and gradient norms were not compared with a plain layout's")
    return notes


def rows(results: Sequence[StudyResult]) -> list[ScalingRow]:
    """Returns a row for each recipe and study: recipes in the studies' order, devices ascending."""
    rows_of: dict[str, list[ScalingRow]] = {}
    for result in sorted(results, key=lambda study_result: study_result.header.cluster.num_devices):
        header = result.header
        for of_recipe in result.of_study:
            best, verdict = of_recipe.winner, of_recipe.gate
            closest = None if best else nearest(of_recipe.judged, header.cluster)
            reason = (
                "" if best else "nothing was measured" if closest is None else closest.reason or closest.outcome.value
            )
            if still_open := of_recipe.unresolved:
                labels = " and ".join(point.main_run.layout.label for point in still_open)
                reason = f"not resolved between {labels}: the machine was disturbed"
            elif of_recipe.is_uncompared:
                reason = "one layout was measured: no comparison"
            row = ScalingRow(
                study=header.name,
                recipe=of_recipe.recipe,
                num_devices=header.cluster.num_devices,
                tokens=header.tokens,
                price_per_gpu_h=header.price_per_gpu_h,
                best=best,
                reason=reason,
                coverage=of_recipe.coverage,
                runs=len(of_recipe.ranking[0].runs) if best else 0,
                caveats=names_of(of_recipe.caveats) if best else "",
                gate="" if verdict is None else "passed" if verdict.passed else "failed",
            )
            rows_of.setdefault(row.recipe.id, []).append(row)
    return [row for group in rows_of.values() for row in _with_efficiency(group)]


def _with_efficiency(group: Sequence[ScalingRow]) -> list[ScalingRow]:
    rates = [row.tokens_per_s / row.num_devices for row in group if row.tokens_per_s]
    return [
        dataclasses.replace(row, efficiency=row.tokens_per_s / row.num_devices / rates[0] if row.tokens_per_s else None)
        for row in group
    ]


def by_recipe(rows: Sequence[ScalingRow]) -> list[list[ScalingRow]]:
    groups: dict[str, list[ScalingRow]] = {}
    for row in rows:
        groups.setdefault(row.recipe.id, []).append(row)
    return list(groups.values())
