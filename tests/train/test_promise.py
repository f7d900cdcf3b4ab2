"""Tests, on made-up records, of the sentences on a throughput below the search's and on memory that grows."""

import dataclasses
from typing import Any

from platform.train.promise import Promise, memory_growth, shortfall
from trainers.records.training import Begun, Record, Saved, Steps, Validated

PROMISE = Promise(tokens_per_s=1000.0, matmul_tflops=100.0)
BEGUN = Begun(
    attempt=1, step=0, tokens=0, startup_s=5.0, layout="DDP", nodes=("a", "a", "b", "b"), matmul_tflops=(100.0,) * 4
)


def records(speed: float, *, between_s: float = 0.0, **fields: Any) -> list[Record]:
    """Returns twenty reports of ten steps of 1000 tokens each, with `between_s` of other work before each report."""
    all_records: list[Record] = [BEGUN]
    for i in range(20):
        defaults: dict[str, Any] = {
            "attempt": 1,
            "first_step": 10 * i + 1,
            "losses": (2.0,) * 10,
            "grad_norms": (1.0,) * 10,
            "learning_rates": (1e-3,) * 10,
            "tokens": 10_000 * (i + 1),
            "tokens_per_step": 1000,
            "train_s": (i + 1) * (10_000 / speed + between_s),
            "steps_s": 10_000 / speed,
            "data_s": 0.0,
            "peak_gib": 1.0,
        }
        all_records.append(Steps(**{**defaults, **fields}))
    return all_records


def test_a_throughput_within_the_tolerance_is_not_mentioned():
    assert shortfall(PROMISE, records(960.0)) == ""


def test_nothing_is_said_of_the_first_minute():
    assert shortfall(PROMISE, records(100.0)[:2]) == ""


def test_a_throughput_below_it_is_named_with_both_figures():
    sentence = shortfall(PROMISE, records(800.0))
    assert "800 tokens/s, 20% below the 1,000 tokens/s of the search" in sentence
    assert "for no cause visible here" in sentence


def test_waiting_for_tokens_is_a_cause():
    assert "10% of the time goes to waiting for tokens (data)" in shortfall(PROMISE, records(800.0, data_s=1.25))


def test_checkpoints_are_a_cause_with_their_share():
    saved = Saved(attempt=1, step=100, name="x", stall_s=38.0, background_s=0.0, gib=1.0)
    sentence = shortfall(PROMISE, [*records(1000.0, between_s=2.0), saved])
    assert "17% of the time goes to checkpoints" in sentence and "data" not in sentence


def test_held_out_losses_are_a_cause():
    validated = Validated(attempt=1, step=100, tokens=1, loss=2.0, train_s=1.0, wall_s=38.0)
    assert "held-out losses" in shortfall(PROMISE, [*records(1000.0, between_s=2.0), validated])


def test_a_slow_node_is_named():
    slow = dataclasses.replace(BEGUN, matmul_tflops=(100.0, 100.0, 70.0, 100.0))
    sentence = shortfall(PROMISE, [slow, *records(800.0)[1:]])
    assert (
        "a device of node b reaches 70% of the others' matrix products (slow node)" in sentence
        and "node a" not in sentence
    )


def test_devices_that_are_all_slower_than_in_the_search_are_said():
    slow = dataclasses.replace(BEGUN, matmul_tflops=(80.0,) * 4)
    assert "the devices reach 80% of their matrix products in the search" in shortfall(
        PROMISE, [slow, *records(800.0)[1:]]
    )


def test_memory_that_grows_is_said_once_fifty_steps_are_done():
    all_records = records(1000.0)
    assert memory_growth(all_records) == ""
    grown = [
        all_records[0],
        all_records[1],
        *(dataclasses.replace(record, peak_gib=2.0) for record in records(1000.0)[2:]),
    ]  # type: ignore[type-var]
    assert "1.00 GiB after step 10 and 2.00 GiB after step 50" in memory_growth(grown)
    assert memory_growth(grown[:4]) == ""
