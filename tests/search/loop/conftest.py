"""A made-up study, and the loop on it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.search.loop.budget import Budget
from platform.search.loop.exploration import Relearn
from platform.search.loop.jobs import TrialSettings
from platform.search.loop.lanes import Lanes
from platform.search.loop.loop import SearchLoop
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.search.setup.forecast import NO_FORECAST, Forecast
from platform.searchers.problem import Problem
from platform.study.study import Study
from search_spaces.candidate import Candidate
from tests.samples import header
from tests.search.loop.backend import CLUSTER, OTHER, RECIPE, Backend, Clock, Make, candidates
from tests.whole_searches.session import write_space
from trainers.records.job import Timing

if TYPE_CHECKING:
    from tests.search.loop.played import Played

TIMING = Timing(winner_s=4.0)


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    """Yields a new study whose first line is written."""
    with Study.create(tmp_path, "made-up") as created:
        created.record(header("made-up", recipes=(RECIPE, OTHER), cluster=CLUSTER))
        yield created


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backend(study: Study, clock: Clock) -> Backend:
    return Backend(study, clock)


@pytest.fixture
def make(study: Study, clock: Clock) -> Make:
    """Creates the loop of a session from the journal's present content."""

    def created(
        within: Sequence[Candidate] = candidates(),
        *,
        searcher: str = "sweep",
        rules: ConfirmationRules | None = None,
        timing: Timing = TIMING,
        forecast: Forecast = NO_FORECAST,
        probe_s: float | None = None,
        relearn: Relearn | None = None,
        lanes: Lanes | None = None,
        **budget: float,
    ) -> SearchLoop:
        return SearchLoop(
            study=study,
            candidates=within,
            searcher=searchers.create(searcher, Problem(candidates=within)),
            budget=Budget(**budget),  # type: ignore[reportArgumentType]
            settings=TrialSettings(
                cluster=CLUSTER,
                cpus_per_worker=1.0,
                recorder="none",
                commit="0123456",
                cap_gib=2.0,
                probe_s=probe_s,
                timing=timing,
                rules=rules,
            ),
            forecast=forecast,
            clock=clock,
            relearn=relearn,
            lanes=lanes,
        )

    return created


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Played":
    from tests.search.loop.played import play_sessions  # imports Ray, which takes seconds

    return play_sessions(tmp_path, monkeypatch)


@pytest.fixture
def pair(tmp_path: Path) -> str:
    """Returns a space file with two layouts of one rung, and a global batch that one and two devices share evenly."""
    axes = {"checkpointing": ("none", "full"), "engine": ("ddp",)}
    return str(write_space(tmp_path / "pair.py", axes=axes, micro_batches=(1,)))
