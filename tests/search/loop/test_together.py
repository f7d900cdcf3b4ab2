"""Several searches on one cluster, without Ray: whose trial begins next, on which nodes, and what each learns."""

import heapq
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.search.loop.budget import Budget
from platform.search.loop.jobs import TrialSettings
from platform.search.loop.lanes import Lanes
from platform.search.loop.loop import SearchLoop
from platform.search.loop.together import Together
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.searchers.problem import Problem
from platform.study.study import Study
from tests.samples import header
from tests.search.loop.backend import CLUSTER, RECIPE, Backend, Clock, candidates, history_of
from tests.search.loop.conftest import TIMING
from tests.search.loop.test_lanes import MANY, nodes
from trainers.records.job import GateSize, Job

RULES = ConfirmationRules(repeats=2, finalists=2, gate=GateSize(steps=2, sequences=4))


class Cluster:
    """Searches whose trials take `per_trial` nodes each, or a share of one, on `count` nodes."""

    def __init__(
        self, folder: Path, count: int, per_trial: list[int], per_node: int = 1, time_s: float | None = None
    ) -> None:
        self.clock, self.present = Clock(), nodes(count)
        self.studies = [Study.create(folder, f"made-up-{number}") for number in range(len(per_trial))]
        self.loops: list[SearchLoop] = []
        self.running: list[tuple[float, int, SearchLoop, Job]] = []
        self.begun: list[tuple[SearchLoop, Job]] = []
        for study, num_taken in zip(self.studies, per_trial, strict=True):
            study.record(header(study.name, recipes=(RECIPE,), cluster=CLUSTER))
            within = candidates(RECIPE) if num_taken > 1 else MANY[: len(MANY) // 2]
            settings = TrialSettings(
                cluster=CLUSTER, cpus_per_worker=1.0, recorder="none", commit="0123456", cap_gib=2.0, timing=TIMING,
                rules=RULES,
            )  # fmt: skip
            self.loops.append(
                SearchLoop(
                    study=study, candidates=within, searcher=searchers.create("sweep", Problem(candidates=within)),
                    budget=Budget(time_s=time_s), settings=settings, clock=self.clock,
                    lanes=Lanes(lambda: self.present, nodes_per_trial=num_taken, trials_per_node=per_node),
                )
            )  # fmt: skip
        self.together = Together(self.loops)

    def run(self, chance: random.Random) -> None:
        """Plays all trials, which end in any order, to the end of every search."""
        while True:
            while (begun := self.together.next_job()) is not None:
                loop, job = begun
                self.begun.append(begun)
                entry = (self.clock.now_s + chance.uniform(5.0, 40.0), len(self.begun), loop, job)
                heapq.heappush(self.running, entry)
                self.check()
            if not self.running:
                return
            end_s, _, loop, job = heapq.heappop(self.running)
            state, reason = Backend(loop.study, Clock()).begin(job)
            self.clock.now_s = end_s
            loop.on_trial_end(job.trial_id, state=state, reason=reason)

    def check(self) -> None:
        """Holds what runs now to what the nodes have."""
        for node in self.present:
            on_node = [job for _, _, _, job in self.running if node in job.nodes]
            assert sum(job.node_share for job in on_node) <= 1 + 1e-9
            assert len(on_node) == 1 or not any(job.repeat or not job.rungs for job in on_node), "final runs are alone"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


@pytest.mark.parametrize("seed", range(4))
def test_searches_of_any_size_share_the_nodes_and_all_of_them_come_to_their_end(seed: int, folder: Path) -> None:
    chance = random.Random(seed)
    cluster = Cluster(folder, 4, [4, 2, 1], per_node=chance.choice([1, 2]) if seed else 1)
    cluster.run(chance)
    for loop in cluster.loops:
        history = history_of(loop.study)
        assert loop.state.is_terminal and not loop.left_out
        assert not any(history.missing(candidate) for candidate in loop._search._candidates.values())  # pyright: ignore[reportPrivateUsage]


def test_small_trials_fill_what_large_ones_leave_free(folder: Path) -> None:
    cluster = Cluster(folder, 3, [2, 1])
    large, small = cluster.together.next_job(), cluster.together.next_job()
    assert large and small and (large[0], small[0]) == (cluster.loops[0], cluster.loops[1])
    assert len(large[1].nodes) == 2 and set(large[1].nodes).isdisjoint(small[1].nodes)
    assert cluster.together.next_job() is None


def test_under_a_limit_of_time_each_gets_its_turns_and_large_trials_their_nodes(folder: Path) -> None:
    cluster = Cluster(folder, 3, [2, 1], time_s=1000.0)
    cluster.run(random.Random(1))
    order = [loop is cluster.loops[0] for loop, _ in cluster.begun]
    half = order[: len(order) // 2]
    assert 1 < sum(half) < len(half) - 1, "none waits for the end of the other"


def test_without_one_large_trials_follow_each_other_and_no_node_waits_for_them(folder: Path) -> None:
    cluster = Cluster(folder, 2, [2, 1])
    cluster.run(random.Random(1))
    order = [loop is cluster.loops[0] for loop, _ in cluster.begun]
    assert order == sorted(order, reverse=True)


def test_a_trial_that_others_crowded_out_of_memory_runs_alone_on_the_cluster(folder: Path) -> None:
    """Checks the driver's host, where a part of every trial runs: whichever ran beside it may be the cause."""
    cluster = Cluster(folder, 3, [2, 1])
    loop, job = cluster.together.next_job() or pytest.fail("nothing to run")
    beside = cluster.together.next_job()
    assert beside is not None and beside[0] is not loop
    loop.on_trial_end(job.trial_id, state="failed", reason="host memory ran out", is_crowded=True)
    assert cluster.together.next_job() is None, "the other one's trial still runs"
    beside[0].on_trial_end(beside[1].trial_id, state="done", reason="")
    again = cluster.together.next_job()
    assert again is not None and (again[0], again[1].layout) == (loop, job.layout)
    assert not loop.neighbours(again[1].trial_id) and cluster.together.next_job() is None, "nothing beside it"


def test_each_trial_says_which_ones_of_other_searches_ran_beside_it(folder: Path) -> None:
    cluster = Cluster(folder, 3, [2, 1])
    cluster.run(random.Random(2))
    first, second = (history_of(study) for study in cluster.studies)
    beside = {other for start in second.trials if (end := second.trial_end(start.trial_id)) for other in end.beside}
    of_first = {other for other in beside if other.startswith("made-up-0:")}
    assert of_first and {name.partition(":")[2] for name in of_first} <= {start.trial_id for start in first.trials}
