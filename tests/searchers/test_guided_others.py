"""The guided search beside others of the same command, on other numbers of devices."""

import dataclasses
import math

import numpy as np

from platform.cost_model.ordering import known_columns
from platform.searchers.guidance.points import make_points
from platform.searchers.guided import Guided
from platform.searchers.problem import Problem, stacked
from search_spaces import load
from search_spaces.candidate import Candidate
from tests.samples import measurement
from tests.searchers.guided_problem import BLOOM, H200S, PLAIN, PLANNED
from trainers.records.measurement import Measurement

ON_TWO = load("bloom7b").with_changes(PLAIN).candidates(2)[0]
TWO = dataclasses.replace(H200S, devices_per_node=2)
OF_TWO = known_columns(ON_TWO, TWO, None)
assert PLANNED.columns is not None and OF_TWO is not None
TAUGHT: Problem[Candidate] = dataclasses.replace(
    PLANNED, others=(tuple(ON_TWO),), columns=stacked([PLANNED.columns, OF_TWO])
)
ALONE = make_points(dataclasses.replace(PLANNED, candidates=ON_TWO, columns=OF_TWO))


def slow(candidate: Candidate, factor: float) -> list[Measurement]:
    """Returns the candidate's rungs on two devices, slower than predicted by a factor."""
    place = ON_TWO.index(candidate)
    points = np.flatnonzero(ALONE.owner == place)
    return [
        measurement(
            recipe=candidate.recipe,
            on=candidate.layout,
            micro_batch=rung,
            tokens_per_s=candidate.tokens_per_step / (factor * math.exp(ALONE.log_step_s[point])),
        )
        for rung, point in zip(candidate.micro_batches, points, strict=True)
    ]


def test_what_is_known_before_is_the_same_with_others_and_none_of_theirs_is_suggested() -> None:
    searcher, keys = Guided(TAUGHT), {candidate.key for candidate in BLOOM}
    first, alone = searcher.suggest(), Guided(PLANNED).suggest()
    assert first is not None and alone is not None and first.key == alone.key
    for candidate in ON_TWO[:20]:
        searcher.overhear(candidate, slow(candidate, 1.0))
        assert (suggested := searcher.suggest()) is not None and suggested.key in keys


def test_an_engine_that_others_found_slow_is_passed_over() -> None:
    searcher = Guided(TAUGHT)
    first = searcher.suggest()
    assert first is not None
    engine = first.layout.engine
    searcher.update(first, [])
    before = searcher.suggest()
    assert before is not None and before.layout.engine == engine
    for candidate in ON_TWO[::3]:
        searcher.overhear(candidate, slow(candidate, 2.0 if candidate.layout.engine == engine else 1.0))
    # With a figure of its own, from which on measurements pass layouts over.
    other = next(each for each in BLOOM if each.layout.engine != engine)
    searcher.update(other, [measurement(recipe=other.recipe, on=other.layout, micro_batch=1, tokens_per_s=20_000.0)])
    after = searcher.suggest()
    assert after is not None and after.layout.engine != engine
