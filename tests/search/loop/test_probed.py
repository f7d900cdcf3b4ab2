"""The loop after its first trial has measured devices and links: a new searcher, taught what is known, goes on."""

import pytest

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.searchers.problem import Problem
from platform.study.study import Study
from search_spaces.candidate import Candidate
from tests.cluster.probing.samples import probe
from tests.search.loop.backend import LAYOUTS, Backend, Died, Make, candidates, fast, history_of
from trainers.records.journal import Resume
from trainers.records.probe import Probe


def reversed_order(probes: list[Probe], searcher: str) -> object:
    """Returns a function that makes a searcher of the candidates in reversed order, and notes the probe."""

    def relearn(probed: Probe) -> searchers.Searcher[Candidate]:
        probes.append(probed)
        return searchers.create(searcher, Problem(candidates=candidates()[::-1]))

    return relearn


@pytest.mark.parametrize(("searcher", "order"), [("sweep", (0, 2, 1)), ("guided", (0, 1, 2))])
def test_what_the_first_trial_measures_re_orders_the_others(
    make: Make, backend: Backend, study: Study, searcher: str, order: tuple[int, ...]
) -> None:
    """Checks the order of what is left, which without predictions the guided searcher takes from afar."""
    probes: list[Probe] = []
    backend.probe = probe()
    backend.run(make(searcher=searcher, probe_s=5.0, relearn=reversed_order(probes, searcher)))
    assert probes == [backend.probe] == [history_of(study).probe]
    assert [layout for layout, _ in backend.order] == [LAYOUTS[place] for place in order], "none twice"
    assert [job.probe_s for job in backend.jobs] == [5.0, None, None]


def test_a_first_trial_that_dies_before_leaves_it_to_the_next(make: Make, backend: Backend, study: Study) -> None:
    probes: list[Probe] = []
    backend.play = lambda job, batch: Died() if len(backend.jobs) == 1 else fast(job, batch)
    loop = make(probe_s=5.0, relearn=reversed_order(probes, "sweep"))
    backend.step(loop)
    assert not probes and history_of(study).probe is None
    backend.probe = probe()
    backend.step(loop)
    assert probes and [job.probe_s for job in backend.jobs] == [5.0, 5.0]


def test_a_resumed_session_measures_it_no_second_time(make: Make, backend: Backend, study: Study) -> None:
    backend.probe = probe()
    backend.step(make(probe_s=5.0, relearn=reversed_order([], "sweep")))
    study.record(Resume())
    backend.step(make(probe_s=5.0))
    assert backend.jobs[1].probe_s is None
