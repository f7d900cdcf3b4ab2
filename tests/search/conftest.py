"""A made-up study, and the loop on it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.finals.trial import Rules
from platform.loop.budget import Budget
from platform.loop.jobs import Settings
from platform.loop.loop import Loop
from platform.searchers.problem import Problem
from platform.study.study import Study
from search_spaces.candidate import Candidate
from tests.samples import header
from tests.search.backend import (
    CLUSTER,
    OTHER,
    RECIPE,
    Backend,
    Clock,
    Make,
    candidates,
)
from trainers.values.job import Timing


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    """A new study whose first line is written."""
    with Study.create(tmp_path, "made-up") as made:
        made.record(header("made-up", recipes=(RECIPE, OTHER), cluster=CLUSTER))
        yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backend(study: Study, clock: Clock) -> Backend:
    return Backend(study, clock)


@pytest.fixture
def make(study: Study, clock: Clock) -> Make:
    """Makes the loop of a session, on what the journal holds at that moment."""

    def made(
        within: Sequence[Candidate] = candidates(),
        *,
        searcher: str = "sweep",
        rules: Rules | None = None,
        spent_s: float = 0.0,
        **budget: float,
    ) -> Loop:
        return Loop(
            study=study,
            candidates=within,
            searcher=searchers.create(searcher, Problem(candidates=within)),
            budget=Budget(**budget),  # type: ignore[reportArgumentType]
            settings=Settings(
                cluster=CLUSTER,
                cpus_per_worker=1.0,
                recorder="none",
                commit="0123456",
                cap_gib=2.0,
                timing=Timing(winner_s=4.0),
                rules=rules,
            ),
            spent_s=spent_s,
            clock=clock,
        )

    return made
