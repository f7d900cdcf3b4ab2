"""The subject of a recheck: winner and runner-up of an old study, at their batch points."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from platform.common.errors import InputError
from platform.search.setup.options import StudyOptions, options_of
from platform.study.folder import located
from platform.study.result.result import StudyResult
from platform.study.study import find, read
from search_spaces.candidate import Candidate
from trainers.records.measurement import Measurement

REPEATS = 2
"""Runs of both points in fresh processes, after the first."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RecheckSubject:
    """The points of an old study that run again."""

    result: StudyResult
    winner: Measurement
    runner_up: Measurement | None
    """The best point of another layout; None if no other was measured."""

    @property
    def points(self) -> tuple[Measurement, ...]:
        """The points, the winner first."""
        return (self.winner, *((self.runner_up,) if self.runner_up else ()))

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The points as candidates, each with only its micro-batch."""
        return tuple(
            Candidate(recipe=point.recipe, layout=point.layout, micro_batches=(point.batch.micro_batch,), refine=False)
            for point in self.points
        )

    @property
    def options(self) -> StudyOptions:
        """The old study's options, for the winner's number of devices and without those that selected its points."""
        return dataclasses.replace(
            options_of(self.result.header),
            gpus=(self.winner.layout.world_size,),
            searcher="sweep",
            learn_from=None,
            all=False,
            repeats=REPEATS,
        )


def subject_of(folder: Path) -> RecheckSubject:
    """Returns the points of the study in `folder` to run again, of its first recipe with a winner.

    Raises:
        InputError: the study does not exist or has no winner.
    """
    result = StudyResult.of(read(find(*located(folder.parent, folder.name)))[0])
    for of_recipe, winner in result.winners:
        return RecheckSubject(result=result, winner=winner, runner_up=of_recipe.runner_up)
    raise InputError(f"the study {folder.name} has no winner to run again")


def refuse_others(candidates: Sequence[Candidate], recipes: Sequence[str], space: str) -> None:
    """Checks that a search's recipes (ids) are those of the points.

    Raises:
        InputError: a point has another recipe.
    """
    for candidate in candidates:
        if candidate.recipe.id not in recipes:
            raise InputError(
                f"the winner trained {candidate.recipe.label}, which the space {space} is not any more, or not on these"
                " devices: recheck it as and where it was measured"
            )
