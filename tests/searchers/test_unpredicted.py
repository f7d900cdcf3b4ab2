"""The guided search where nothing is predicted: first trials spread over values, then what they teach of each value."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform.cost_model.gp_inputs import DOUBLING_SIGMA, SWITCH_SIGMA, UNKNOWN, VALUE_SHARE, gp_inputs_of
from platform.searchers.guidance.spread import spread
from platform.searchers.guided import SPREAD, Guided
from platform.searchers.problem import Problem
from search_spaces.command import space_of_command
from tests.samples import measurement

VALUES = st.one_of(st.integers(0, 4), st.sampled_from(["a", "b", ""]))


@given(rows=st.lists(st.fixed_dictionaries({"x": VALUES, "y": VALUES, "z": VALUES}), min_size=1, max_size=30))
def test_every_turn_names_a_layout_and_the_first_one_is_first(rows: list[dict[str, object]]) -> None:
    places = [spread(rows, turn) for turn in range(20)]
    assert places[0] == 0 and set(places) <= set(range(len(rows)))


def test_turns_are_apart_on_the_axes() -> None:
    rows = [dict(zip("abc", values, strict=True)) for values in itertools.product(range(8), repeat=3)]
    turns = [rows[spread(rows, turn)] for turn in range(SPREAD)]
    assert all(len({row[axis] for row in turns}) >= SPREAD - 1 for axis in "abc")
    assert all(sum(row[axis] != other[axis] for axis in "abc") >= 2 for row, other in itertools.combinations(turns, 2))


def test_a_value_of_few_layouts_has_its_share() -> None:
    rows = [{"engine": "many", "width": width} for width in range(50)] + [{"engine": "few", "width": 0}]
    assert 50 in [spread(rows, turn) for turn in range(SPREAD)]


@pytest.mark.parametrize("best", [4, 16, 64])
def test_the_middle_of_a_number_is_found(best: int) -> None:
    """Checks an axis whose best value is between its ends, beside one of names, in a quarter of all trials."""
    command = ("a", "{micro_batch=1}", "{width=1,2,4,8,16,32,64,128,256}", "{mode=a,b,c,d}")
    space = space_of_command(command, folder=Path("/"), tokens_per_step=16, seq_len=16)
    candidates, _ = space.candidates(1)
    guided = Guided(Problem(candidates=candidates))
    for _ in range(len(candidates) // 4):
        candidate = guided.suggest()
        assert candidate is not None
        width, mode = (candidate.axes[axis] for axis in ("own width", "own mode"))
        off = 0.3 * abs(math.log2(float(str(width)) / best)) + 0.1 * "cabd".index(str(mode))
        guided.update(candidate, [measurement(micro_batch=1, tokens_per_s=1000 * math.exp(-off))])
        if not off:
            break
    else:
        pytest.fail("not found")


def test_each_value_of_a_number_has_an_effect_of_its_own() -> None:
    """Checks that neighbours may differ by more than their doublings say: the best need not be at an end."""
    rows = [{"width": 2**power - 1, "two": power % 2} for power in range(1, 9)]
    owner = np.arange(len(rows))
    places = gp_inputs_of(rows, owner, np.ones(len(rows), dtype=np.int64))
    apart = (places.effects[0] - places.effects[2]).astype(np.float64)
    doublings = 2 * UNKNOWN * DOUBLING_SIGMA
    assert (apart**2).sum() == pytest.approx(doublings**2 + 2 * (UNKNOWN * VALUE_SHARE * SWITCH_SIGMA) ** 2, rel=1e-5)
