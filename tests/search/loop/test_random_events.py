"""Searches on a cluster on which anything may happen keep their promises, in any order of events."""

import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.search.loop.budget import Budget
from platform.study.result.ranking import winner
from tests.search.loop.backend import LAYOUTS, OTHER, RECIPE, candidates
from tests.search.loop.conftest import TIMING
from tests.search.loop.test_lanes import MANY
from tests.search.loop.world import (
    GATE_S,
    RUNG_S,
    START_S,
    Chances,
    Kind,
    World,
    measured_twice,
    true_speed,
)

LONGEST_S = 1.5 * START_S + GATE_S + RUNG_S + TIMING.winner_s
"""Seconds of the longest trial without the rungs that a budget cuts off, on a node that does not lag."""
QUICK = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def kinds_of(chance: random.Random, num_searches: int) -> list[Kind]:
    """Returns searches of any size."""
    return [
        Kind(
            candidates=chance.choice([MANY, candidates(RECIPE), candidates(RECIPE, OTHER, layouts=LAYOUTS[:2])]),
            searcher=chance.choice(searchers.NAMES),
            nodes_per_trial=(nodes := chance.choice([1, 1, 2])),
            trials_per_node=chance.choice([1, 1, 3]) if nodes == 1 else 1,
        )
        for _ in range(num_searches)
    ]


def budget_of(chance: random.Random) -> Budget:
    """Returns a budget, or none."""
    return chance.choice(
        [
            Budget(),
            Budget(time_s=chance.uniform(20.0, 400.0)),
            Budget(gpu_s=chance.uniform(50.0, 2000.0)),
            Budget(max_trials=chance.randint(1, 9)),
            Budget(time_s=chance.uniform(20.0, 400.0), gpu_s=chance.uniform(50.0, 2000.0)),
        ]
    )


@QUICK
@given(seed=st.integers(0, 2**32 - 1), num_searches=st.integers(1, 3), num_nodes=st.integers(2, 6))
def test_nothing_is_lost_or_measured_twice_and_every_search_ends(seed: int, num_searches: int, num_nodes: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), chance, kinds_of(chance, num_searches), num_nodes)
        world.pace["id1"] = chance.choice([1.0, 0.5])
        for _ in range(chance.randint(0, 4)):
            world.chances = Chances(
                dies=chance.choice([0.0, 0.05, 0.3]), hangs=chance.choice([0.0, 0.05]),
                out_of_memory=chance.choice([0.0, 0.2]), unstarted=chance.choice([0.0, 0.05, 0.5]),
                node_events=chance.choice([0.0, 0.02, 0.1]), noise=chance.choice([0.0, 0.1, 0.5]),
                peaks=chance.random() < 0.5, predicts=chance.random() < 0.5,
            )  # fmt: skip
            world.session(budget_of(chance), lines_left=chance.choice([-1, chance.randint(0, 60)]))
        world.chances = Chances()
        world.session()
        for loop, history in zip(world.loops, world.histories(), strict=True):
            kind = world.kinds[world.loops.index(loop)]
            # Noise of earlier sessions may keep an order open, which costs each session a few rounds.
            assert not loop.fault and (not loop.left_out or loop.left_out.startswith("further runs of "))
            assert not any(history.missing(candidate) for candidate in kind.candidates)
            assert not measured_twice(loop.study)
            assert len({start.trial_id for start in history.trials}) == len(history.trials)
        begun, is_open = len(world.begun), any(loop.left_out for loop in world.loops)
        world.session()
        assert is_open or len(world.begun) == begun, "nothing is left for a further session"
        for study in world.studies:
            study.close()


@QUICK
@given(seed=st.integers(0, 2**32 - 1), num_searches=st.integers(1, 3), num_nodes=st.integers(2, 6))
def test_no_budget_is_overspent_by_more_than_one_trial(seed: int, num_searches: int, num_nodes: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), chance, kinds_of(chance, num_searches), num_nodes)
        for _ in range(3):
            budget, began_s = budget_of(chance), world.clock.now_s
            world.chances = Chances(noise=chance.choice([0.0, 0.5]))
            world.session(budget)
            for loop in world.loops:
                assert loop.spending.gpu_s <= (budget.gpu_s or 1e9) + 2 * LONGEST_S
                assert world.clock.now_s - began_s <= (budget.time_s or 1e9) + LONGEST_S
        for study in world.studies:
            study.close()


@QUICK
@given(seed=st.integers(0, 2**32 - 1), num_nodes=st.integers(2, 6))
def test_without_noise_the_fastest_wins_whatever_happens_to_nodes_and_driver(seed: int, num_nodes: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), chance, kinds_of(chance, chance.randint(1, 2)), num_nodes)
        world.chances = Chances(node_events=chance.choice([0.0, 0.05]), unstarted=chance.choice([0.0, 0.1]))
        for _ in range(chance.randint(0, 3)):
            world.session(budget_of(chance), lines_left=chance.choice([-1, chance.randint(0, 60)]))
        world.chances = Chances()
        world.session()
        for kind, history in zip(world.kinds, world.histories(), strict=True):
            for recipe in {candidate.recipe for candidate in kind.candidates}:
                most = max(
                    true_speed(entry.layout, batch)
                    for entry in kind.candidates if entry.recipe == recipe for batch in entry.micro_batches
                )  # fmt: skip
                best = winner(history.of_recipe(recipe.id), history.paces)
                assert best is not None and best.tokens_per_s == most
        for study in world.studies:
            study.close()
