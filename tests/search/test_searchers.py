"""The contract that every searcher keeps: each one of the registry runs through the same tests."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import pytest

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.searchers import Searcher
from platform.searchers.optuna import OptunaSearcher
from platform.searchers.sweep import Shuffle, Sweep
from search_spaces.space import Candidate
from tests.samples import layout, measurement, oom
from tests.search.backend import OTHER, RECIPE, candidates
from trainers.measurement import Measurement

Make = Callable[[Sequence[Candidate], int], Searcher]
Answer = Callable[[Candidate], Sequence[Measurement]]

MAKERS: dict[str, Make] = {
    **{name: functools.partial(searchers.create, name) for name in searchers.NAMES},
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
            layout(engine="ddp", zero_stage=0, dp_shard=1, dp_replicate=2, bucket_mib=mib, checkpointing=each)
            for mib in (0, 64)
            for each in CHECKPOINTING
        ),
    ],
)
"""Twelve: two engines with unlike axes, two recipes."""
EARLIER = MANY[2:6]


def speed(candidate: Candidate) -> list[Measurement]:
    """A ladder that ran; checkpointing costs, buckets help."""
    base = 1000.0 + candidate.layout.bucket_mib - 300.0 * (candidate.layout.checkpointing == "full")
    return [
        measurement(recipe=candidate.recipe, on=candidate.layout, micro_batch=each, tokens_per_s=base * each)
        for each in candidate.micro_batches
    ]


def no_room(candidate: Candidate) -> list[Measurement]:
    """A ladder that ended at its first rung."""
    return [oom(recipe=candidate.recipe, on=candidate.layout, rank=0)]


def not_a_number(candidate: Candidate) -> list[Measurement]:
    """A figure that no comparison holds for, as the best of the ladder and before others."""
    whole = speed(candidate)
    return [dataclasses.replace(whole[0], tokens_per_s=math.nan), *whole[1:2]]


def endless(candidate: Candidate) -> list[Measurement]:
    """A figure above all others."""
    return [dataclasses.replace(speed(candidate)[0], tokens_per_s=math.inf)]


def nothing(candidate: Candidate) -> list[Measurement]:
    """A trial of which nothing came back."""
    return []


def exhausted(searcher: Searcher, answer: Answer, most: int = 100) -> list[Candidate]:
    """Everything it suggests until it has nothing left."""
    seen: list[Candidate] = []
    while (suggested := searcher.suggest()) is not None:
        seen.append(suggested)
        assert len(seen) <= most, "it suggests without end"
        searcher.update(suggested, answer(suggested))
    return seen


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Make:
    """Makes one searcher of the kind under test."""
    return MAKERS[request.param]


class TestContract:
    def test_it_suggests_every_candidate_once_and_then_nothing(self, make: Make) -> None:
        seen = exhausted(make(MANY, 0), speed)
        assert all(any(each is candidate for candidate in MANY) for each in seen), "the candidates themselves"
        assert sorted(each.key for each in seen) == sorted(each.key for each in MANY)

    def test_it_stays_at_nothing(self, make: Make) -> None:
        searcher = make(MANY[:2], 0)
        exhausted(searcher, speed)
        assert searcher.suggest() is None and searcher.suggest() is None

    def test_asked_twice_it_gives_the_same(self, make: Make) -> None:
        searcher = make(MANY, 0)
        for _ in range(len(MANY)):
            first, second = searcher.suggest(), searcher.suggest()
            assert first is not None and first is second
            searcher.update(first, speed(first))

    @pytest.mark.parametrize("seed", [0, 1])
    def test_the_same_seed_and_history_give_the_same(self, make: Make, seed: int) -> None:
        assert exhausted(make(MANY, seed), speed) == exhausted(make(MANY, seed), speed)

    @pytest.mark.parametrize("answer", [no_room, not_a_number, endless, nothing])
    def test_it_survives_any_history(self, make: Make, answer: Answer) -> None:
        seen = exhausted(make(MANY, 0), answer)
        assert sorted(each.key for each in seen) == sorted(each.key for each in MANY)

    def test_it_takes_what_it_did_not_suggest(self, make: Make) -> None:
        """A resumed study tells of its earlier trials before it asks for anything, and a loop of what it passed by."""
        searcher = make(MANY, 0)
        for known in EARLIER:
            searcher.update(known, speed(known))
        standing = searcher.suggest()
        assert standing is not None
        other = next(each for each in MANY if each not in (standing, *EARLIER))
        searcher.update(other, no_room(other))
        seen = [each.key for each in exhausted(searcher, speed)]
        assert sorted(seen) == sorted({each.key for each in MANY} - {each.key for each in (*EARLIER, other)})

    def test_told_twice_of_one_trial_it_goes_on(self, make: Make) -> None:
        searcher = make(MANY[:3], 0)
        first = searcher.suggest()
        assert first is not None
        searcher.update(first, no_room(first))
        searcher.update(first, speed(first))
        seen = exhausted(searcher, speed)
        assert len(seen) == 2 and first not in seen

    def test_one_candidate(self, make: Make) -> None:
        assert exhausted(make(MANY[:1], 0), speed) == [MANY[0]]

    def test_no_candidates(self, make: Make) -> None:
        assert make((), 0).suggest() is None


def test_each_name_of_the_registry_is_a_class_of_its_own() -> None:
    kinds = {name: type(searchers.create(name, MANY, 0)) for name in searchers.NAMES}
    assert len(set(kinds.values())) == len(kinds)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown searcher 'annealing': there are " + ", ".join(searchers.NAMES)):
        searchers.create("annealing", MANY, 0)


def test_the_sweep_keeps_the_space_s_order() -> None:
    assert exhausted(Sweep(MANY, 0), speed) == list(MANY)


def test_other_seeds_shuffle_otherwise() -> None:
    orders = {tuple(each.key for each in exhausted(Shuffle(MANY, seed), speed)) for seed in range(4)}
    assert len(orders) == 4


def test_optuna_learns_what_is_slow() -> None:
    """Of forty layouts where one axis decides, its later suggestions are better than chance."""
    layouts = [
        layout(engine="ddp", zero_stage=0, dp_shard=1, dp_replicate=2, bucket_mib=mib, checkpointing=each)
        for mib in range(0, 80, 4)
        for each in CHECKPOINTING
    ]
    many = candidates(layouts=layouts)
    good = 0
    for seed in range(2):
        first = exhausted(OptunaSearcher(many, seed), speed)[10:25]
        good += sum(each.layout.checkpointing == "none" for each in first)
    assert good > 30 * 0.6
