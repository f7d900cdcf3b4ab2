"""The lessons of a study, printed at its end, and predictions beside measurements."""

import dataclasses
import itertools
import time

import numpy as np

import search_spaces
from platform.report.forecast import Forecaster
from platform.report.lessons import _pairs, axes_worth, cost_saving, lessons, reasons_for_winner  # pyright: ignore[reportPrivateUsage]
from platform.study.history import History
from platform.study.result.result import RecipeResult, StudyResult
from tests.samples import header, layout, measurement, result_of
from trainers.records.journal import Measured, TrialEnd
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.cluster import Cluster

H200S = Cluster(
    device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=4, capability=(9, 0)
)
RECIPE = search_spaces.load("bloom7b").recipe
FULL = layout(dp_shard=4, checkpointing="full")
NONE = layout(dp_shard=4)
FAST = measurement(recipe=RECIPE, on=NONE, micro_batch=1, tokens_per_s=24000.0, peak_allocated_gib=100.0)
SLOW = measurement(recipe=RECIPE, on=FULL, micro_batch=1, tokens_per_s=20000.0, peak_allocated_gib=80.0)
LARGER = measurement(recipe=RECIPE, on=FULL, micro_batch=2, tokens_per_s=22000.0)


def _of(measurements: list[Measurement]) -> RecipeResult:
    return result_of(measurements).measured[0]


def _worth(measurements: list[Measurement], winner: Measurement | None) -> list[str]:
    return axes_worth(_of(measurements), winner)


def test_an_axis_is_told_by_pairs_that_differ_in_nothing_else() -> None:
    assert _worth([FAST, SLOW, LARGER], None) == [
        "checkpointing, all else equal: none is 20.0% faster than full (1 pair, not resolved).",
        "micro-batch, all else equal: 2 is 10.0% faster than 1 (1 pair, not resolved).",
    ]
    assert _worth([FAST, LARGER], None) == [], "two axes apart"


def test_an_axis_that_speaks_against_the_winner_without_it_says_so() -> None:
    small = measurement(recipe=RECIPE, on=layout(dp_shard=4, checkpointing="full", prefetch=2), tokens_per_s=10000.0)
    large = dataclasses.replace(small, batch=LARGER.batch, tokens_per_s=11100.0)
    shown = _worth([FAST, SLOW, LARGER, small, large], FAST)
    words = "mean of 2 pairs, 95 % interval +4.3% to +17.0%, without the winner"
    assert f"micro-batch, all else equal: 2 is 10.5% faster than 1 ({words})." in (shown)
    assert "checkpointing, all else equal: none is 20.0% faster than full (1 pair, not resolved)." in shown
    layouts = [layout(dp_shard=4, checkpointing="full", prefetch=ahead) for ahead in (3, 4)]
    more = [dataclasses.replace(point, layout=beside) for point in (small, large) for beside in layouts]
    measured = dataclasses.replace(FAST, batch=LARGER.batch, tokens_per_s=23900.0)
    shown = _worth([FAST, SLOW, LARGER, small, large, *more, measured], FAST)
    (line,) = [line for line in shown if line.startswith("micro-batch")]
    assert line.endswith(", the other way round for the winner).")


def test_pairs_that_contradict_each_other_are_no_lesson() -> None:
    """Checks the pairs of one busy search: 4 was 41 % faster than 1, then 67 % slower, then 57 % faster."""
    pairs = [
        measurement(recipe=RECIPE, on=layout(dp_shard=4, prefetch=ahead), micro_batch=size, tokens_per_s=speed)
        for ahead, speeds in enumerate([(100.0, 141.0), (100.0, 33.0), (100.0, 157.0)], 1)
        for size, speed in zip((1, 4), speeds, strict=True)
    ]
    assert not [line for line in _worth(pairs, None) if line.startswith("micro-batch")]


def test_a_pair_within_its_windows_is_no_lesson() -> None:
    assert _worth([FAST, dataclasses.replace(SLOW, tokens_per_s=23900.0)], None) == []
    assert _worth([FAST, dataclasses.replace(SLOW, windows_s=(1.0,))], None) == [], "one window has no interval"


def _again(*points: Measurement, shares: tuple[float, ...] = (1.0, 1.01, 0.99)) -> list[Measurement]:
    """Returns the points, each with runs in fresh processes whose speeds are these shares of its own."""
    runs = [
        dataclasses.replace(point, repeat=number, tokens_per_s=share * (point.tokens_per_s or 0.0))
        for point in points
        for number, share in enumerate(shares, 1)
    ]
    return [*points, *runs]


def test_why_it_won_in_parts() -> None:
    (line,) = reasons_for_winner(_of([*_again(FAST, LARGER), SLOW]), Forecaster(cluster=H200S))
    assert line.startswith("The winner is 9.1% ahead of ") and "(95 % interval +9.1% to +9.1%)" in line
    assert "; the cost model has it " in line and "% ahead: of that step " in line and "% less on compute" in line
    assert "pipeline" not in line, "both do without"
    (plain,) = reasons_for_winner(_of([FAST, SLOW]), Forecaster(cluster=dataclasses.replace(H200S, device_kind="cpu")))
    assert "cost model" not in plain and "100 GiB allocated beside 80.0" in plain


def test_a_winner_that_saves_nothing_beside_the_others_is_not_said_to() -> None:
    first = header(cluster=H200S, at="2026-01-01T00:00:00+00:00")
    assert cost_saving(_of([FAST]), first).endswith("the winner takes 193 GPU-days")
    assert cost_saving(_of([FAST, SLOW]), first).endswith(
        " GPU-days, 17.5 less than the median of what ran, which the winner's runs do not resolve (--repeats 3)"
    )
    resolved = cost_saving(_of([*_again(FAST), *_again(SLOW)]), first)
    assert " less than the median of what ran (95 % interval of its runs " in resolved


def test_a_layout_that_was_stopped_as_slow_may_be_the_next_best() -> None:
    slow = dataclasses.replace(LARGER, outcome=Outcome.SLOW)
    for others in ([slow], [slow, SLOW], [dataclasses.replace(SLOW, outcome=Outcome.SLOW), LARGER]):
        (line,) = reasons_for_winner(_of([FAST, *others]), Forecaster(cluster=H200S))
        assert line.startswith("Not resolved between the winner and ") and "24,000 and 22,000 tokens/s" in line
        assert ("micro-batch 2, which was stopped as slow" in line) == (slow in others)


def test_only_runs_beside_each_other_call_a_winner_ahead() -> None:
    (single,) = reasons_for_winner(_of(_again(FAST, LARGER, shares=(1.0,))), Forecaster(cluster=H200S))
    assert single.startswith("Not resolved between the winner and "), "one run of each"
    (tied,) = reasons_for_winner(_of(_again(FAST, dataclasses.replace(LARGER, tokens_per_s=24000.0))),
        Forecaster(cluster=H200S))  # fmt: skip
    assert tied.startswith("The winner is tied with ")


def test_a_layout_that_failed_the_gate_is_not_the_next_best() -> None:
    slow = dataclasses.replace(LARGER, outcome=Outcome.SLOW)
    failed = dataclasses.replace(SLOW, outcome=Outcome.FAILED, phase="gate", repeat=1, tokens_per_s=None)
    assert reasons_for_winner(_of([FAST, slow, failed]), Forecaster(cluster=H200S)) == []


def test_a_study_ends_with_its_lessons_and_its_cost() -> None:
    history = History(
        [
            header("made-up", recipes=(RECIPE,), cluster=H200S, at="2026-11-21T00:00:00+00:00"),
            *(Measured(measurement=point, at="2026-11-21T00:00:00+00:00") for point in (FAST, SLOW, LARGER)),
            TrialEnd(
                trial_id="t0001", key="k", state="done", wall_s=43200, gpu_s=172800, at="2026-11-21T12:00:00+00:00"
            ),
        ]
    )
    lines = lessons(StudyResult.of(history))
    assert lines[0].startswith("checkpointing, all else equal: ")
    assert "The search cost 2.00 GPU-days" in lines[-1] and "less than the median of what ran" in lines[-1]


def test_each_recipe_has_its_own_lessons_and_the_search_one_cost() -> None:
    other = dataclasses.replace(RECIPE, global_batch=256)
    same = [dataclasses.replace(point, recipe=other) for point in (FAST, SLOW)]
    history = History([header(recipes=(RECIPE, other), cluster=H200S, at="2026-11-21T00:00:00+00:00")])
    history.extend([Measured(measurement=point, at="2026-11-21T00:00:00+00:00") for point in (FAST, SLOW, *same)])
    lines = lessons(StudyResult.of(history))
    first, second = lines.index(f"Of {RECIPE.label}:"), lines.index(f"Of {other.label}:")
    assert [sum("faster" in line for line in part) for part in (lines[first:second], lines[second:])] == [1, 1]
    assert [line.startswith("Over 100B tokens ") for line in lines].count(True) == 2
    assert [line for line in lines if "The search cost" in line] == lines[-1:] and lines[-1].endswith(" GPU-days.")


def test_predicted_stands_beside_measured_with_the_error_so_far() -> None:
    timed = [
        dataclasses.replace(point, step_time_s=RECIPE.tokens_per_step / (point.tokens_per_s or 1))
        for point in (FAST, SLOW)
    ]
    line = Forecaster(cluster=H200S).predictions_beside(timed[0], timed)
    assert line.startswith(" | predicted ") and "too " in line and "model's error so far " in line
    assert line.endswith("corrected")
    assert Forecaster(cluster=dataclasses.replace(H200S, device_kind="cpu")).predictions_beside(timed[0], timed) == ""


def test_the_error_so_far_takes_no_longer_in_a_large_study() -> None:
    timed = dataclasses.replace(FAST, step_time_s=RECIPE.tokens_per_step / (FAST.tokens_per_s or 1))
    began_s = time.process_time()
    assert Forecaster(cluster=H200S).error([timed] * 10_000)
    assert time.process_time() - began_s < 10, "the square of them took minutes"


def test_the_pairs_are_those_that_differ_in_one_axis_alone() -> None:
    """Checks the sorted search for pairs against a comparison of every two rows."""
    random = np.random.default_rng(0)
    codes = np.unique(random.integers(0, 3, size=(60, 4)), axis=0)
    codes = random.permutation(codes).T
    for place in range(len(codes)):
        others = np.delete(codes, place, axis=0)
        expected = {
            frozenset((a, b))
            for a, b in itertools.combinations(range(codes.shape[1]), 2)
            if (others[:, a] == others[:, b]).all() and codes[place, a] != codes[place, b]
        }
        kinds = list(_pairs(codes, place))
        pairs = [frozenset((int(a), int(b))) for first, second in kinds for a, b in zip(first, second, strict=True)]
        assert set(pairs) == expected and len(pairs) == len(expected)
        for first, second in kinds:
            assert len(set(codes[place, first])) == len(set(codes[place, second])) == 1, "one value on each side"
