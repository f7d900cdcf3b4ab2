"""The learning rate that a strategy gets: the steps of the search, the rule, and the sentence on it; without
training.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from platform.common.errors import InputError
from platform.train.converging.rates import LEAST_STEPS, Rate, Rates, rate_by_rule, rate_of, search_rate, short_tokens
from platform.train.converging.strategies import Strategy
from platform.train.initial_model import weights_identity
from tests.training.values import DDP, RECIPE
from trainers.spec.batch import BatchPoint

FIRST = Strategy(name="first", recipe=RECIPE, layout=DDP, batch=BatchPoint(micro_batch=2, grad_accum=1))
LARGE = dataclasses.replace(FIRST, name="large", recipe=dataclasses.replace(RECIPE, global_batch=64))
ADAFACTOR = dataclasses.replace(FIRST, name="adafactor", recipe=dataclasses.replace(RECIPE, optimizer="adafactor"))
TOKENS = 1000 * RECIPE.tokens_per_step


def bowl(best: float):
    """Returns a function that gives each rate a loss, which grows with its distance from the best one, in
    logarithms.
    """

    def losses_of(rates: Sequence[float]) -> list[float]:
        return [2.0 + abs(math.log(rate / best)) for rate in rates]

    return losses_of


@pytest.mark.parametrize(
    ("best", "max_rates", "expected", "number"),
    [(0.01, 5, 0.01, 3), (0.03, 5, 0.03, 4), (0.09, 5, 0.09, 5), (0.81, 5, 0.27, 5), (0.001, 4, 0.01 / 9, 4)],
)
def test_the_search_goes_on_past_a_best_rate_at_the_edge(best: float, max_rates: int, expected: float, number: int):
    rate, num_tried = search_rate(0.01, max_rates, bowl(best))
    assert rate == pytest.approx(expected) and num_tried == number


def test_where_no_rate_learns_the_rule_stays():
    assert search_rate(0.01, 5, lambda rates: [math.inf for _ in rates]) == (0.01, 3)


def test_the_rule_follows_the_root_of_the_batch():
    assert rate_by_rule(FIRST, LARGE) == pytest.approx(RECIPE.learning_rate * 4)
    assert rate_by_rule(FIRST, ADAFACTOR) == RECIPE.learning_rate


def test_a_short_training_has_enough_steps():
    assert short_tokens(FIRST, TOKENS) == 200 * RECIPE.tokens_per_step
    assert short_tokens(LARGE, TOKENS) == LEAST_STEPS * LARGE.recipe.tokens_per_step
    assert short_tokens(LARGE, LEAST_STEPS * LARGE.recipe.tokens_per_step - 1) is None


def test_what_was_done_is_said():
    common: dict[str, Any] = {"tokens": TOKENS, "losses_of": bowl(0.03)}
    assert rate_of(FIRST, ADAFACTOR, limit=5, **common).source == "the best of 4 in 200 steps each"
    rule = rate_of(FIRST, LARGE, limit=5, tokens=TOKENS // 50, losses_of=bowl(1.0))
    source = "the first's rate times 4.00, by the rule: no rates are tried in so few steps (1)"
    assert rule == Rate(value=RECIPE.learning_rate * 4, source=source)
    assert "--rates 0" in rate_of(FIRST, FIRST, limit=0, **common).source


def test_what_was_decided_is_read_back_for_equal_mathematics(tmp_path: Path):
    path = tmp_path / "rates.json"
    Rates(path).decide(FIRST, Rate(value=0.03, source="a search"))
    again = Rates(path)
    other_rate = dataclasses.replace(FIRST, recipe=dataclasses.replace(RECIPE, learning_rate=0.5))
    assert again.lookup(other_rate) == Rate(value=0.03, source="a search") and again.lookup(LARGE) is None


def test_rates_are_of_the_weights_that_trainings_begin_with(tmp_path: Path):
    path, decided = tmp_path / "rates.json", Rate(value=0.03, source="a search")
    Rates(path, "these").decide(FIRST, decided)
    assert Rates(path, "these").lookup(FIRST) == decided
    for other in ("others", ""):
        with pytest.raises(InputError, match="began with other weights"):
            Rates(path, other)
    path.write_text("{}")  # of trainings without such weights, from before they were noted
    assert Rates(path).lookup(FIRST) is None
    with pytest.raises(InputError, match="began with other weights"):
        Rates(path, "these")


def test_weights_are_identified_by_every_byte_and_not_by_their_place(tmp_path: Path):
    folders = [tmp_path / name for name in ("first", "copied", "changed", "shorter")]
    files = {f"model-0000{part}-of-00002.safetensors": bytes(range(256)) * 500 * part for part in (1, 2)}
    for folder in folders:
        folder.mkdir()
        for name, written in files.items():
            (folder / name).write_bytes(written)
    (folders[1] / "README.md").write_text("another file")
    last = sorted(files)[-1]
    content = files[last]
    (folders[2] / last).write_bytes(content[:200_000] + b"\xff" + content[200_001:])
    (folders[3] / last).write_bytes(content[:-1])
    first, copied, *others = (weights_identity(str(folder)) for folder in folders)
    assert first == copied and len({first, *others}) == 3
