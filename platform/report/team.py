"""The report on a folder of studies, of one or several people: a row for each study, and shared points."""

import dataclasses
import math
import pwd
from collections.abc import Sequence
from pathlib import Path

from platform.common.copies import is_copy, with_addresses
from platform.report.table import Column, Table, TablePart
from platform.study.keys import key_of
from platform.study.result.ranking import PointRuns, speed_of
from platform.study.result.result import StudyResult
from trainers.records.journal import StudyHeader
from trainers.spec.codec import printable

_MOST_SHARED = 20
"""Number of points measured in several studies that are listed, the fastest first."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A recipe of a study."""

    study: str
    person: str
    header: StudyHeader
    recipe: str
    best: PointRuns | None
    caveats: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Shared:
    """A point that several studies measured on the same devices."""

    layout: str
    batch: str
    devices: str
    figures: Sequence[tuple[str, float]]
    """Names of studies with their tokens/s."""

    @property
    def spread(self) -> float:
        """The fastest figure over the slowest, minus 1."""
        speeds = [speed for _, speed in self.figures]
        return max(speeds) / min(speeds) - 1


def team_parts(studies: Sequence[tuple[Path, StudyResult]], root: Path) -> list[TablePart]:
    """Returns the table of the studies below `root`, and one of the points that several of them measured.

    Shared points are only shown beside each other; a study's result never uses another study's figures.
    """
    rows = [
        _Row(
            study=name_below(path, root),
            person=_person(path),
            header=result.header,
            recipe=of_recipe.recipe.label,
            best=of_recipe.winning_point,
            caveats=", ".join(caveat.name for caveat in of_recipe.caveats),
        )
        for path, result in studies
        for of_recipe in result.measured
    ]
    rows.sort(key=lambda row: (row.recipe, -speed_of(row.best.main_run) if row.best else math.inf))
    parts = [
        TablePart(heads=[f"Studies in {with_addresses(str(root))}"], table=Table(columns=_STUDIES, rows=rows).filled)
    ]
    if shared := _shared(studies, root):
        notes = ["Shown beside each other: no study's answer rests on another's figures."]
        if more := len(shared[_MOST_SHARED:]):
            notes.append(f"And {more:,} points more.")
        table = Table(columns=_POINTS, rows=shared[:_MOST_SHARED])
        parts.append(TablePart(heads=["Measured in several studies"], table=table, notes=notes))
    return parts


def _shared(studies: Sequence[tuple[Path, StudyResult]], root: Path) -> list[_Shared]:
    """Returns the points that several studies measured on equal devices, the fastest first."""
    by_key: dict[tuple[str, int, str], dict[str, PointRuns]] = {}
    for path, result in studies:
        name = name_below(path, root)
        for of_recipe in result.measured:
            for point in of_recipe.points:
                if point.speeds:
                    run = point.main_run
                    key = key_of(run), run.batch.micro_batch, result.header.cluster.label_under(run.cap_gib)
                    by_key.setdefault(key, {})[name] = point
    shared = [
        _Shared(
            layout=run.layout.label,
            batch=f"{run.batch.micro_batch} x {run.batch.grad_accum}",
            devices=devices,
            figures=[(name, speed_of(point.main_run)) for name, point in by_study.items()],
        )
        for (_, _, devices), by_study in by_key.items()
        if len(by_study) > 1
        for run in [next(iter(by_study.values())).main_run]
    ]
    return sorted(shared, key=lambda point: -max(speed for _, speed in point.figures))


def name_below(path: Path, root: Path) -> str:
    """Returns the study's path below the folder `root`, or its name if it is that folder."""
    return printable(path.name if path == root else str(path.relative_to(root)))


def _person(path: Path) -> str:
    """Returns the name of the study's owner; "" for the copy of a study elsewhere, whose owner is unknown."""
    if is_copy(path):
        return ""
    owner = path.stat().st_uid
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)


_STUDIES: list[Column[_Row]] = [
    Column(title="study", value=lambda row: row.study, left=True),
    Column(title="by", value=lambda row: row.person, left=True),
    Column(title="begun", value=lambda row: row.header.at[:10], left=True),
    Column(title="recipe", value=lambda row: row.recipe, left=True, fold=16),
    Column(title="devices", value=lambda row: row.header.cluster.label, left=True, fold=10),
    Column(title="tokens/s", value=lambda row: row.best and row.best.main_run.tokens_per_s, blank="-",
           derived=lambda row: row.best is not None and row.best.main_run.step_time_derived),
    Column(title="fastest layout", left=True, fold=20,
           value=lambda row: row.best and f"{row.best.main_run.layout.label}, {row.best.main_run.batch.micro_batch}"
           f" x {row.best.main_run.batch.grad_accum}"),
    Column(title="caveats", value=lambda row: row.caveats, left=True, fold=12),
]  # fmt: skip
_POINTS: list[Column[_Shared]] = [
    Column(title="layout", value=lambda point: point.layout, left=True, fold=20),
    Column(title="batch", value=lambda point: point.batch),
    Column(title="devices", value=lambda point: point.devices, left=True, fold=10),
    Column(title="tokens/s by study", left=True, fold=20,
           value=lambda point: ", ".join(f"{name} {speed:,.0f}" for name, speed in point.figures)),
    Column(title="apart", value=lambda point: f"{100 * point.spread:.1f} %"),
]  # fmt: skip
