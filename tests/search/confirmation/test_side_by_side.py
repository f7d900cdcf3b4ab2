"""Final runs beside each other where nodes are free: rounds of contenders, and what device seconds pay for."""

import random

import pytest

from platform.search.loop.lanes import Lanes
from platform.study.study import Study
from tests.search.confirmation.test_disturbed import FASTEST, LAST, noise, search_then
from tests.search.loop.backend import OTHER, RECIPE, Backend, Clock, Make, candidates, history_of
from tests.search.loop.side_by_side import Playing, of_random_length
from tests.search.loop.test_lanes import MANY, RULES, nodes
from trainers.records.search_state import SearchState


@pytest.mark.parametrize("num_nodes", [1, 2, 4])
def test_rounds_of_contenders_run_beside_each_other_each_on_nodes_of_its_own(
    num_nodes: int, make: Make, backend: Backend, clock: Clock, study: Study
) -> None:
    backend.play = search_then(noise())
    playing = Playing(backend, clock, lambda job: 10.0)
    within = candidates(RECIPE)
    playing.run(make(within, rules=LAST, lanes=Lanes(lambda: nodes(num_nodes))))
    history = history_of(study)
    runs = [start for start in history.trials if start.state is SearchState.BREAKING_TIES]
    ends = {start.trial_id: history.trial_end(start.trial_id) for start in runs}
    of_round = {start.trial_id: start.repeat for start in runs}
    beside = {(start.repeat, of_round[other]) for start in runs if (end := ends[start.trial_id])
              for other in end.beside if other in of_round}  # fmt: skip
    assert bool(beside) is (num_nodes > 1) and all(first != second for first, second in beside)
    rounds = sorted({start.repeat for start in runs})
    for number in rounds:
        layouts = [start.layout for start in runs if start.repeat == number]
        assert len(set(layouts)) == len(layouts) == len(within), "every contender runs in every round, once"
        assert len({start.nodes for start in runs if start.repeat == number}) == 1
    assert all(start.repeat == number for number in rounds[3:] for start in runs
               if start.trial_id in {other for end in ends.values() if end and of_round[end.trial_id] == number
                                     for other in end.beside})  # fmt: skip


def test_ties_of_several_recipes_are_broken_at_the_same_time(
    make: Make, backend: Backend, clock: Clock, study: Study
) -> None:
    backend.play = search_then(lambda job: FASTEST[job.layout] * random.Random(job.trial_id).uniform(0.4, 0.95))
    playing = Playing(backend, clock, lambda job: 10.0)
    playing.run(make(candidates(RECIPE, OTHER), rules=LAST, lanes=Lanes(lambda: nodes(8))))
    history = history_of(study)
    runs = {start.trial_id: start for start in history.trials if start.state is SearchState.BREAKING_TIES}
    ends = [end for trial_id in runs if (end := history.trial_end(trial_id))]
    assert {start.recipe for start in runs.values()} == {RECIPE, OTHER}
    assert any(runs[end.trial_id].recipe != runs[other].recipe for end in ends for other in end.beside if other in runs)


@pytest.mark.parametrize("gpu_s", [400.0, 700.0, 1000.0, 1500.0])
def test_final_runs_within_device_seconds_run_beside_each_other_and_spend_no_more(
    gpu_s: float, make: Make, backend: Backend, clock: Clock, study: Study
) -> None:
    playing = Playing(backend, clock, of_random_length(random.Random(int(gpu_s))))
    playing.seconds = lambda job: 15.0
    loop = make(MANY, rules=RULES, gpu_s=gpu_s, lanes=Lanes(lambda: nodes(4)))
    playing.run(loop)
    history = history_of(study)
    finals = [start for start in history.trials if start.is_final]
    assert history.gpu_s <= gpu_s
    if gpu_s >= 1000:
        assert finals and any(end.beside for start in finals if (end := history.trial_end(start.trial_id)))
