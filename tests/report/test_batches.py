"""Recipes that differ only in their global batch, compared."""

import dataclasses

import pytest

from platform.report.batches import batch_parts, batch_rows, side_by_side
from platform.report.console import rendered
from tests.samples import RECIPE, layout, measurement, oom, result_of, skipped
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

SIZES = (32, 128, 512)
DDP = Layout(engine="ddp", dp_replicate=4)


def of(size: int) -> Recipe:
    """Returns the recipe with another global batch."""
    return dataclasses.replace(RECIPE, global_batch=size)


def measured() -> list[Measurement]:
    """Returns two layouts that run, the second one faster at the smallest batch, and one that runs out of memory."""
    measurements: list[Measurement] = []
    for size, speed in zip(SIZES, (10000.0, 15000.0, 20000.0), strict=True):
        measurements.append(measurement(recipe=of(size), tokens_per_s=speed, step_time_derived=size == 512))
        other = layout(zero_stage=2)
        measurements.append(
            measurement(recipe=of(size), on=other, micro_batch=2, tokens_per_s=min(speed - 500, 14000.0))
        )
        measurements.append(measurement(recipe=of(size), on=other, tokens_per_s=9000.0))
        measurements.append(oom(recipe=of(size), on=DDP, micro_batch=2))
    measurements.append(measurement(recipe=of(32), on=layout(zero_stage=2), micro_batch=4, tokens_per_s=12000.0))
    thrash = {"outcome": Outcome.THRASH, "reason": "3 allocator retries"}
    measurements.append(
        measurement(recipe=of(512), on=layout(zero_stage=2), micro_batch=4, tokens_per_s=30000.0, **thrash)
    )
    return measurements


def test_each_batch_has_its_winner_and_each_layout_its_best_point() -> None:
    (batches,) = side_by_side(result_of(measured()))
    assert batches.sizes == SIZES
    assert [batches.best[size].tokens_per_s for size in SIZES] == [12000.0, 15000.0, 20000.0]
    assert [batches.share(size) for size in SIZES] == ["60%?", "75%?", "100%"]
    names = [on.label for on, _ in batches.rows]
    assert names == [layout().label, layout(zero_stage=2).label, DDP.label]
    cells = batches.rows[1][1]
    assert [(cells[size].batch.micro_batch, cells[size].tokens_per_s) for size in SIZES] == [
        (4, 12000.0), (2, 14000.0), (2, 14000.0)]  # fmt: skip
    assert batches.rows[2][1][32].outcome is Outcome.OOM


@pytest.mark.parametrize("width", [60, 80, 160])
def test_it_fits(width: int) -> None:
    text = rendered(batch_parts(result_of(measured())), width=width)
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    for words in ("12,000", "20,000~", "60%", "75%", "100%", "another loss curve", "? not resolved by"):
        assert words in flat, f"{words} at {width}"
    assert (" oom" in text) == (width > 60)
    assert (text.count("*") == 4) == (width > 60), "a row each of its winner needs no mark"


def test_it_says_accumulation_and_step() -> None:
    flat = " ".join(rendered(batch_parts(result_of(measured())), width=160).split())
    assert "1 x 128" in flat and "52.4~ s" in flat


def test_recipes_that_differ_otherwise_do_not_stand_side_by_side() -> None:
    other = dataclasses.replace(RECIPE, seq_len=1024, global_batch=64)
    assert side_by_side(result_of([measurement(), measurement(recipe=other)])) == []
    assert side_by_side(result_of([measurement(), skipped(recipe=of(64))])) == []
    assert rendered(batch_parts(result_of([measurement()])), width=80) == ""


def test_a_batch_where_nothing_fits_is_told() -> None:
    measurements = [measurement(), oom(recipe=of(1024))]
    assert "nothing fits" in rendered(batch_parts(result_of(measurements)), width=55)
    (batches,) = side_by_side(result_of(measurements))
    assert batches.share(1024) == ""


def test_rows_for_machines() -> None:
    rows = batch_rows(result_of(measured()))
    assert [row["global_batch"] for row in rows if row["winner"]] == [128, 512, 32]
    assert {row["outcome"] for row in rows} == {"ok", "oom"}
