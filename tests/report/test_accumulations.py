"""Accumulations compared: what a longer one gains and what it changes."""

import dataclasses

from platform.report.accumulations import accumulation_parts, accumulation_rows
from platform.report.batches import side_by_side
from platform.report.console import rendered
from platform.report.summary import verdicts
from platform.report.terminal import render
from tests.samples import RECIPE, layout, measurement, oom, result_of
from trainers.records.measurement import Measurement
from trainers.spec.recipe import Recipe

TOKENS = 1e11


def of(accumulation: int) -> Recipe:
    """Returns the recipe with a fixed accumulation."""
    return dataclasses.replace(RECIPE, global_batch=0, grad_accum=accumulation)


def measured() -> list[Measurement]:
    """Returns two accumulations that run at two micro-batches, and one that runs out of memory."""
    measurements = [oom(recipe=of(256), on=layout(), micro_batch=1)]
    for accumulation, speed in ((16, 20000.0), (1, 15000.0)):
        for micro_batch in (1, 2):
            measurements.append(
                measurement(recipe=of(accumulation), micro_batch=micro_batch, tokens_per_s=speed + 1000.0 * micro_batch)
            )
    return measurements


def test_each_accumulation_states_its_winner_with_its_global_batch() -> None:
    rows = accumulation_rows(result_of(measured()))
    assert [(row["grad_accum"], row["micro_batch"], row["global_batch"]) for row in rows] == [
        (1, 2, 8), (16, 2, 128), (256, None, None)]  # fmt: skip
    assert [row["tokens_per_s"] for row in rows] == [17000.0, 22000.0, None]
    days = TOKENS / 22000.0 / 86400
    assert rows[1]["days"] == days


def test_the_table_puts_speed_beside_the_global_batch() -> None:
    text = rendered(accumulation_parts(result_of(measured())), width=80)
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    assert "What accumulation buys" in flat and "77%" in flat and "100%" in flat and "nothing fits" in flat
    assert "another loss curve" in flat and "52.6" in flat, "days of the fastest"
    assert rendered(accumulation_parts(result_of(measured()[1:3])), width=80) == "", "one alone has nothing beside it"
    assert side_by_side(result_of(measured())) == [], "the table of global batches is for recipes that fix one"


def test_points_of_one_accumulation_train_different_recipes() -> None:
    first, two = measured()[1:3]
    assert first.recipe == two.recipe and (first.global_batch, two.global_batch) == (64, 128)
    assert first.trained_recipe != two.trained_recipe
    assert two.trained_recipe == dataclasses.replace(RECIPE, global_batch=128)


def test_the_main_table_keeps_the_global_batch_at_any_width() -> None:
    flat = " ".join(render(result_of(measured()), width=70).split())
    assert "accumulation 16" in flat and " batch " in flat and " 128 " in flat
    assert any("64 to 128 are different recipes" in sentence for sentence in verdicts(result_of(measured())))
