"""A node that lags is named and left out, by its matmul peaks or by the figures of its trials; others never are."""

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform.report.lanes import lagging_words
from platform.search.loop.lanes import Lanes
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.lagging_nodes import NodeFigures, by_peaks
from platform.study.result.ranking import winner
from tests.samples import layout, measurement
from tests.search.loop.backend import CLUSTER, OTHER, RECIPE, candidates
from tests.search.loop.test_lanes import MANY, nodes
from tests.search.loop.world import Chances, Kind, World, true_speed
from trainers.records.journal import Peak
from trainers.records.measurement import Measurement, Outcome

LAYOUTS = tuple(layout(dp_shard=2, bucket_mib=size) for size in range(1, 13))
SEARCH = Kind(candidates=candidates(RECIPE, OTHER, layouts=LAYOUTS), rules=ConfirmationRules(repeats=2, finalists=2))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    created = World(tmp_path, random.Random(3), [SEARCH], 4)
    yield created
    for study in created.studies:
        study.close()


@pytest.mark.parametrize(
    ("chances", "by"), [(Chances(peaks=True), "peak"), (Chances(predicts=True, noise=0.05), "figures")]
)
def test_a_slow_node_is_named_and_nothing_further_runs_there(world: World, chances: Chances, by: str) -> None:
    world.chances, world.pace["id3"] = chances, 0.5
    world.session()
    (history,) = world.histories()
    (lag,) = history.lagging.values()
    assert (lag.node, lag.by) == ("10.0.0.3", by) and lag.pace == pytest.approx(0.5, abs=0.05)
    on_it = [number for number, start in enumerate(history.trials) if "10.0.0.3" in start.nodes]
    assert 3 <= len(on_it) <= 7 and on_it[-1] < 0.6 * len(history.trials)
    assert "Node 10.0.0.3 lags: " in lagging_words(history)
    assert not any(history.missing(candidate) for candidate in SEARCH.candidates)
    if not chances.noise:
        for recipe in (RECIPE, OTHER):
            best = winner(history.of_recipe(recipe.id), history.paces)
            assert best and best.tokens_per_s == max(true_speed(on, 4) for on in LAYOUTS)


def test_a_resumed_search_and_one_beside_it_keep_off_the_node(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(5), [SEARCH, Kind(candidates=MANY)], 4)
    world.chances, world.pace["id2"] = Chances(peaks=True), 0.4
    while not all(history.lagging for history in world.histories()):
        world.session(lines_left=40)
    begun = [len(history.trials) for history in world.histories()]
    world.session()
    for number, study, history in zip(begun, world.studies, world.histories(), strict=True):
        assert history.trials[number:] and not any("10.0.0.2" in start.nodes for start in history.trials[number:])
        study.close()


@pytest.mark.parametrize("seed", range(3))
def test_no_node_is_named_where_all_are_alike_or_alike_slow(seed: int, tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(seed), [SEARCH], 4)
    world.pace = dict.fromkeys(world.pace, 0.4 if seed else 1.0)
    world.chances = Chances(peaks=True, predicts=True, noise=0.1)
    world.session()
    assert not world.histories()[0].lagging
    world.studies[0].close()


def test_a_node_that_lags_is_used_where_no_others_hold_a_trial(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(1), [Kind(candidates=SEARCH.candidates, nodes_per_trial=2)], 2)
    world.chances, world.pace["id2"] = Chances(peaks=True), 0.3
    world.session()
    (history,) = world.histories()
    assert not history.lagging and not any(history.missing(candidate) for candidate in SEARCH.candidates)
    world.studies[0].close()


@pytest.mark.parametrize("seed", range(4))
def test_no_rung_is_stopped_for_the_pace_of_its_node(seed: int, tmp_path: Path) -> None:
    """Checks slower nodes that join, whose paces are unknown until their first trials have measured them."""
    gpus = dataclasses.replace(CLUSTER, device_kind="cuda")
    world = World(tmp_path, random.Random(seed), [SEARCH], 2, cluster=gpus, joining_pace=0.92)
    world.chances = Chances(peaks=True, peak_noise=0.0, races=True, node_events=0.4)
    world.session()
    (history,) = world.histories()
    best, num_stopped = dict[str, float](), 0
    for rung in history.measurements:
        speed = true_speed(rung.layout, rung.batch.micro_batch)
        if rung.outcome is Outcome.SLOW:
            assert speed < best[rung.recipe.id]
            num_stopped += 1
        best[rung.recipe.id] = max(speed, best.get(rung.recipe.id, 0.0))
    assert len(world.pace) > 2 and num_stopped
    world.studies[0].close()


def test_one_trial_at_a_time_keeps_off_a_node_that_lags(tmp_path: Path) -> None:
    lanes = Lanes(lambda: nodes(3), nodes_per_trial=2)
    assert lanes.place(()) == {}
    assert lanes.place((), slow={"10.0.0.1"}) == nodes(2, first=2)
    assert lanes.place((), slow={"10.0.0.1", "10.0.0.2"}) == {}, "the one that is left holds no trial"


def test_a_round_that_began_on_the_node_ends_there_and_the_next_one_runs_elsewhere() -> None:
    lanes, slow = Lanes(lambda: nodes(3)), {"10.0.0.1"}
    assert lanes.place((), slow=slow, is_alone=True, at=("10.0.0.1",)) == nodes(1)
    assert lanes.place((), slow=slow, is_alone=True) == nodes(1, first=2)
    assert lanes.place((), avoid=slow, is_alone=True, at=("10.0.0.1",)) == nodes(1, first=2), "trials fail there"


def peaks(*figures: tuple[str, float]) -> list[Peak]:
    return [Peak(device="d", precision="bf16", tflops=tflops, nodes=(node,)) for node, tflops in figures]


def test_a_peak_is_measured_again_before_anything_follows_from_it() -> None:
    first = peaks(("a", 700.0), ("b", 690.0), ("c", 600.0))
    assert by_peaks(first, "cuda") == ({}, {"c"})
    assert by_peaks([*first, *peaks(("c", 695.0))], "cuda") == ({}, set())
    assert by_peaks([*first, *peaks(("c", 610.0))], "cuda") == ({"c": pytest.approx(610 / 695)}, set())
    assert by_peaks([*first, *peaks(("c", 610.0))], "cpu") == ({}, set()), "processors are shared"


def on(node: str, speed: float) -> Measurement:
    return measurement(tokens_per_s=speed, addresses=(node,))


def test_figures_name_a_node_once_they_are_further_off_than_figures_scatter() -> None:
    for scatter, is_named in ((0.02, True), (0.6, False)):
        chance = random.Random(2)
        figures = NodeFigures({"k": {1: 1000.0}, "l": {1: 500.0}})
        for key, speed in (("k", 1000.0), ("l", 500.0)) * 4:
            node = chance.choice("abcd")
            for node in "abcd":
                figures.add(f"{key}", [])
                pace = 0.8 if node == "d" else 1.0
                figures.add(key, [on(node, speed * pace * chance.uniform(1 - scatter, 1 + scatter))])
        assert (list(figures.lagging("abcd", 0.1)) == ["d"]) is is_named


@pytest.mark.parametrize("num_nodes", [2, 3])
def test_final_runs_on_one_node_do_not_name_it_where_predictions_are_far_off(num_nodes: int) -> None:
    chance, figures = random.Random(1), NodeFigures({f"k{number}": {1: 500.0} for number in range(30)})
    for number in range(30):
        figures.add(f"k{number}", [on("abc"[number % num_nodes], chance.uniform(980.0, 1000.0))])
    for number in range(12):  # again, all on one node
        figures.add(f"k{number}", [on("a", chance.uniform(980.0, 1000.0))])
    assert not figures.lagging("abc", 0.1)


def test_a_pair_of_nodes_is_as_far_apart_as_its_figures() -> None:
    figures = NodeFigures({})
    for number in range(24):
        for node in ("ab", "ba")[number % 2]:
            figures.add(f"k{number}", [on(node, {"a": 1000.0, "b": 500.0}[node])])
    assert figures.lagging("ab", 0.1) == {"b": pytest.approx(0.5)}


def test_a_point_is_held_to_what_it_reached_elsewhere_where_nothing_is_predicted() -> None:
    figures = NodeFigures({})
    for number in range(9):
        for node, speed in (("a", 1000.0), ("b", 990.0 + number), ("c", 500.0)):
            figures.add(f"layout {number}", [on(node, speed * (1 + number))])
    assert list(figures.lagging("abc", 0.4)) == ["c"]
