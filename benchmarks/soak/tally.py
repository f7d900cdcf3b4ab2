"""Counts what a study of a soak lost, ran twice and left behind."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.soak.faults import FAULTS
from platform.cluster.leftovers import NOTE, SCRATCH
from search_spaces.candidate import Candidate
from tests.faults.leaks import Held
from tests.whole_searches.studies import run_twice
from trainers.records.journal import Line, Measured, RungStart


@dataclasses.dataclass(slots=True)
class Tally:
    """Counts over all studies; each list holds a sentence for each case, and is empty where all went well."""

    faults: Counter[str] = dataclasses.field(default_factory=Counter[str])
    studies: int = 0
    sessions: int = 0
    measurements: int = 0
    lost: list[str] = dataclasses.field(default_factory=list[str])
    twice: list[str] = dataclasses.field(default_factory=list[str])
    left: list[str] = dataclasses.field(default_factory=list[str])
    odd: list[str] = dataclasses.field(default_factory=list[str])
    """Sessions that ended with a traceback or a wrong exit code, and studies that did not end."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, run twice or left behind, and each session ended as it should."""
        return not (self.lost or self.twice or self.left or self.odd)

    def __str__(self) -> str:
        injected = ", ".join(f"{name} {self.faults[name]}" for name in FAULTS if self.faults[name]) or "none"
        return "\n".join(
            (
                f"{self.studies} studies in {self.sessions} sessions, {self.measurements} measurements",
                f"faults: {injected} ({self.faults.total()} in all)",
                f"measurements lost: {len(self.lost)}",
                f"measurements run twice: {len(self.twice)}",
                f"left behind: {len(self.left)}",
                f"odd ends: {len(self.odd)}",
                *(self.lost + self.twice + self.left + self.odd),
            )
        )

    def take_journal(self, name: str, lines: Sequence[Line], seen_ids: set[str], planned: Iterable[Candidate]) -> None:
        """Counts what the journal of a finished study records; `seen_ids` are measurements that it once held."""
        measured = [line.measurement for line in lines if isinstance(line, Measured)]
        self.studies += 1
        self.measurements += len(measured)
        self.lost += [
            f"{name}: {seen_id} was in the journal and is gone" for seen_id in seen_ids - {m.id for m in measured}
        ]
        measured_layouts = {(measurement.recipe.id, measurement.layout.id) for measurement in measured}
        never = [
            candidate for candidate in planned if (candidate.recipe.id, candidate.layout.id) not in measured_layouts
        ]
        self.lost += [f"{name}: {candidate.layout.label} was never measured" for candidate in never]
        self.lost += [f"{name}: {sentence}" for sentence in unrecorded(lines)]
        self.twice += [f"{name}: {sentence}" for sentence in run_twice(lines)]

    def take_remains(self, name: str, held_resources: Iterable[Held], study: Path, temporary: Path) -> None:
        """Counts what a finished study left: what its trials held, its note, partly written files, folders."""
        self.left += [
            f"{name}: {held_resource.kind} {held_resource.id}"
            for held_resource in held_resources
            if held_resource.is_left(())
        ]
        files = [study / NOTE, *study.glob(".*.part"), *temporary.glob(f"{SCRATCH}*")]
        self.left += [f"{name}: {path}" for path in files if path.exists()]


def unrecorded(lines: Sequence[Line]) -> list[str]:
    """Returns a sentence for each rung that its trial went on from though the journal lacks its measurement."""
    rungs: dict[str, list[int]] = {}
    for line in lines:
        if isinstance(line, RungStart):
            rungs.setdefault(line.trial_id, []).append(line.batch.micro_batch)
    measured = [line.measurement for line in lines if isinstance(line, Measured)]
    recorded = {(measurement.trial_id, measurement.batch.micro_batch) for measurement in measured}
    return [
        f"{trial_id} went on from micro-batch {finished}, of which nothing was recorded"
        for trial_id, climbed in rungs.items()
        for finished, _ in itertools.pairwise(climbed)
        if (trial_id, finished) not in recorded
    ]
