"""The contract of searchers: each one of the registry runs through the same tests."""

import dataclasses
import functools
import math
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.cost_model.ordering import known_columns
from platform.searchers import Searcher
from platform.searchers.optuna import OptunaSearcher
from platform.searchers.problem import Problem
from platform.searchers.sweep import Shuffle, Sweep
from search_spaces.candidate import Candidate
from tests.samples import layout, measurement, oom
from tests.search.loop.backend import OTHER, RECIPE, candidates
from trainers.records.measurement import ENDS_LADDER, Measurement
from trainers.spec.cluster import Cluster

Make = Callable[[Problem[Candidate]], Searcher[Candidate]]
Answer = Callable[[Candidate], Sequence[Measurement]]

H200S = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=2)


def _with_predictions(problem: Problem[Candidate]) -> Searcher[Candidate]:
    return searchers.create(
        "guided", dataclasses.replace(problem, columns=known_columns(problem.candidates, H200S, None))
    )


MAKERS: dict[str, Make] = {
    **{name: functools.partial(searchers.create, name) for name in searchers.NAMES},
    "guided by the cost model": _with_predictions,
    # A searcher of one's own needs no name: its class is enough.
    "a class": Shuffle,
}
CHECKPOINTING = ("none", "full")
MANY = candidates(
    RECIPE,
    OTHER,
    layouts=[
        *(layout(zero_stage=stage, dp_shard=2) for stage in (2, 3)),
        *(
            layout(engine="ddp", zero_stage=0, dp_shard=1, dp_replicate=2, bucket_mib=mib, checkpointing=checkpointing)
            for mib in (0, 64)
            for checkpointing in CHECKPOINTING
        ),
    ],
)
"""Twelve candidates: two engines with unlike axes, two recipes."""
EARLIER = MANY[2:6]


def speed(candidate: Candidate) -> list[Measurement]:
    """Returns a ladder that ran, in as little memory as such a model takes; checkpointing costs, buckets help."""
    base = 1000.0 + candidate.layout.bucket_mib - 300.0 * (candidate.layout.checkpointing == "full")
    return [
        measurement(
            recipe=candidate.recipe,
            on=candidate.layout,
            micro_batch=micro_batch,
            tokens_per_s=base * micro_batch,
            peak_allocated_gib=0.0025,
        )
        for micro_batch in candidate.micro_batches
    ]


def no_room(candidate: Candidate) -> list[Measurement]:
    """Returns a ladder that ended at its first rung."""
    return [oom(recipe=candidate.recipe, on=candidate.layout, rank=0, micro_batch=candidate.micro_batches[0])]


def not_a_number(candidate: Candidate) -> list[Measurement]:
    """Returns a figure that no comparison holds for, as the best of the ladder and before others."""
    results = speed(candidate)
    return [dataclasses.replace(results[0], tokens_per_s=math.nan), *results[1:2]]


def endless(candidate: Candidate) -> list[Measurement]:
    """Returns a figure above all others."""
    return [dataclasses.replace(speed(candidate)[0], tokens_per_s=math.inf)]


def nothing(candidate: Candidate) -> list[Measurement]:
    """Returns a trial without any result."""
    return []


def problem(candidates: Sequence[Candidate], seed: int = 0) -> Problem[Candidate]:
    """Returns the problem of these candidates, without predictions and planned tokens."""
    return Problem(candidates=candidates, seed=seed)


def exhausted(searcher: Searcher[Candidate], answer: Answer, max_suggestions: int = 100) -> list[Candidate]:
    """Returns all suggestions of a searcher. Each must lie in the space, and none may repeat."""
    within = {space_candidate.key: space_candidate for space_candidate in MANY}
    settled = {space_candidate.key: set[int]() for space_candidate in MANY}
    suggestions: list[Candidate] = []
    while (suggested := searcher.suggest()) is not None:
        suggestions.append(suggested)
        assert len(suggestions) <= max_suggestions, "it suggests without end"
        if suggested.key in within:
            candidate = within[suggested.key]
            assert dataclasses.replace(suggested, micro_batches=candidate.micro_batches) == candidate
            assert suggested.micro_batches and set(suggested.micro_batches) <= set(candidate.micro_batches)
            assert list(suggested.micro_batches) == sorted(suggested.micro_batches), "upwards"
            assert not settled[suggested.key] & set(suggested.micro_batches), "each rung once"
            results = answer(suggested)
            over = [result.batch.micro_batch for result in results if result.outcome in ENDS_LADDER]
            settled[suggested.key] |= {
                rung
                for rung in candidate.micro_batches
                if rung in suggested.micro_batches or (over and rung > min(over))
            }
            rungs = tuple(sorted(settled[suggested.key]))
            searcher.update(dataclasses.replace(candidate, micro_batches=rungs), results)
        else:
            searcher.update(suggested, answer(suggested))
    assert searcher.stopped_reason, "it says why"
    return suggestions


def rungs_of(candidates: Sequence[Candidate]) -> set[tuple[str, int]]:
    """Returns every batch point of the candidates."""
    return {(candidate.key, rung) for candidate in candidates for rung in candidate.micro_batches}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Make:
    """Returns a maker of searchers of the kind under test."""
    return MAKERS[request.param]


class TestContract:
    def test_it_suggests_everything_once_and_then_nothing(self, make: Make) -> None:
        assert rungs_of(exhausted(make(problem(MANY)), speed)) == rungs_of(MANY)

    def test_it_stays_at_nothing(self, make: Make) -> None:
        searcher = make(problem(MANY[:2]))
        exhausted(searcher, speed)
        assert searcher.suggest() is None and searcher.suggest() is None

    def test_asked_twice_it_gives_the_same(self, make: Make) -> None:
        searcher = make(problem(MANY))
        while (first := searcher.suggest()) is not None:
            assert first is searcher.suggest()
            searcher.update(first, speed(first))

    @pytest.mark.parametrize("seed", [0, 1])
    def test_the_same_seed_and_history_give_the_same(self, make: Make, seed: int) -> None:
        assert exhausted(make(problem(MANY, seed)), speed) == exhausted(make(problem(MANY, seed)), speed)

    @pytest.mark.parametrize("answer", [not_a_number, endless, nothing])
    def test_it_survives_any_history(self, make: Make, answer: Answer) -> None:
        assert rungs_of(exhausted(make(problem(MANY)), answer)) == rungs_of(MANY)

    def test_it_survives_that_nothing_fits(self, make: Make) -> None:
        """Checks that it tries every layout, except those that must need more memory than one that ran out of it."""
        suggestions = exhausted(make(problem(MANY)), no_room)
        lightest = [candidate for candidate in MANY if candidate.layout.checkpointing == "full"]
        assert {candidate.key for candidate in lightest} <= {suggestion.key for suggestion in suggestions}

    def test_it_takes_what_it_did_not_suggest(self, make: Make) -> None:
        """Checks results that it did not ask for: a resumed study reports its earlier trials first, and a loop the
        points that it passed by.
        """
        searcher = make(problem(MANY))
        for candidate in EARLIER:
            searcher.update(candidate, speed(candidate))
        standing = searcher.suggest()
        assert standing is not None
        other = next(
            untried_candidate
            for untried_candidate in MANY
            if untried_candidate.key not in (standing.key, *(defaults.key for defaults in EARLIER))
        )
        searcher.update(other, speed(other))
        assert rungs_of(exhausted(searcher, speed)) == rungs_of(MANY) - rungs_of((*EARLIER, other))

    def test_a_ladder_cut_short_is_gone_on_with(self, make: Make) -> None:
        """Checks a ladder whose upper rungs a killed session leaves to the next one."""
        searcher = make(problem(MANY[:1]))
        begun = dataclasses.replace(MANY[0], micro_batches=MANY[0].micro_batches[:1])
        searcher.update(begun, speed(begun))
        assert rungs_of(exhausted(searcher, speed)) >= rungs_of(MANY[:1]) - rungs_of([begun])

    def test_told_twice_of_one_trial_it_goes_on(self, make: Make) -> None:
        searcher = make(problem(MANY[:3]))
        searcher.update(MANY[0], no_room(MANY[0]))
        searcher.update(MANY[0], speed(MANY[0]))
        assert MANY[0].key not in {suggestion.key for suggestion in exhausted(searcher, speed)}

    def test_one_candidate(self, make: Make) -> None:
        assert rungs_of(exhausted(make(problem(MANY[:1])), speed)) == rungs_of(MANY[:1])

    def test_no_candidates(self, make: Make) -> None:
        assert make(problem(())).suggest() is None


def test_each_name_of_the_registry_is_a_class_of_its_own() -> None:
    kinds = {name: type(searchers.create(name, problem(MANY))) for name in searchers.NAMES}
    assert len(set(kinds.values())) == len(kinds)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown searcher 'annealing': there are " + ", ".join(searchers.NAMES)):
        searchers.create("annealing", problem(MANY))


def test_the_sweep_keeps_the_space_s_order() -> None:
    of_recipe = [candidate for candidate in MANY if candidate.recipe == RECIPE]
    assert exhausted(Sweep(problem(of_recipe)), speed) == of_recipe


@pytest.mark.parametrize("maker", ["sweep", "guided", "guided by the cost model"])
def test_recipes_take_turns(maker: str) -> None:
    """Checks that a budget which ends early has served each recipe; a third one with a single layout does not wait for
    the others.
    """
    single = dataclasses.replace(MANY[0], recipe=dataclasses.replace(RECIPE, global_batch=64))
    order = [suggestion.recipe for suggestion in exhausted(MAKERS[maker](problem([*MANY, single])), speed)]
    ahead = [order[:place].count(RECIPE) - order[:place].count(OTHER) for place in range(len(order))]
    assert max(map(abs, ahead)) == 1 and single.recipe in order[:3]


def test_other_seeds_shuffle_otherwise() -> None:
    orders = {
        tuple(suggestion.key for suggestion in exhausted(Shuffle(problem(MANY, seed)), speed)) for seed in range(4)
    }
    assert len(orders) == 4


def test_optuna_learns_what_is_slow() -> None:
    """Checks that later suggestions among forty layouts, of which one axis decides the speed, are better than
    chance.
    """
    layouts = [
        layout(engine="ddp", zero_stage=0, dp_shard=1, dp_replicate=2, bucket_mib=mib, checkpointing=checkpointing)
        for mib in range(0, 80, 4)
        for checkpointing in CHECKPOINTING
    ]
    many = candidates(layouts=layouts)
    good = 0
    for seed in range(2):
        first = exhausted(OptunaSearcher(problem(many, seed)), speed)[10:25]
        good += sum(suggestion.layout.checkpointing == "none" for suggestion in first)
    assert good > 30 * 0.6


def test_what_is_imported_beforehand_is_what_is_made() -> None:
    """Imports the searcher in a process of its own, because everything is imported here already."""
    code = """
import sys, threading
import platform.searchers as searchers
searchers.preload("guided")
[each.join() for each in threading.enumerate() if each.name == "searcher-import"]
print("platform.searchers.guided" in sys.modules)
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert (completed.stdout, completed.stderr) == ("True\n", "")
