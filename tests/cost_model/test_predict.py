"""Intervals, chunks and grids, and predictions of reference models pinned as text."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import search_spaces
from benchmarks.cost_model_speed import Axes, make_grid
from platform.cost_model import host
from platform.cost_model import step_time as steps
from platform.cost_model.hardware import find_cluster, with_memory_cap
from platform.cost_model.predict import normal_cdf, predict, under_the_host_s
from platform.plan.best_layouts import best_plan
from tests.cost_model.points import GPT2, GPT_39B, fsdp, point
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

GOLDEN = Path(__file__).parent / "golden" / "predictions.txt"
GRID = make_grid(Recipe(model=GPT_39B, seq_len=2048, global_batch=512), find_cluster("8x8xA100"), Axes())
REFERENCES = (
    ("bloom7b", "8xH100"),
    ("bloom7b", "4xjean-zay-a100"),
    ("gpt2", "1xH200"),
    ("gpt2_xl", "p3.8xlarge"),
    ("gpt_175b", "128xdgx-a100"),
    ("gpt_1t", "384xdgx-a100"),
    ("tr3m_1b3", "2xjean-zay-v100"),
)


def test_intervals_hold_the_prediction_and_widen_with_communication() -> None:
    near = predict(point(fsdp(dp_shard=8, grad_sync="every"), cluster="8xA100"))
    far = predict(point(fsdp(dp_shard=16, grad_sync="every"), cluster="2xp3.16xlarge"))
    for prediction in (near, far):
        assert prediction.low_s[0] < prediction.step.total_s[0] < prediction.high_s[0]
    assert far.sigma[0] > 2 * near.sigma[0]


def test_intervals_widen_with_attention() -> None:
    """Checks that more attention widens the interval: its kernels differ more from version to version than matrix
    products do.
    """
    short, long = (
        point(fsdp(attention="flex"), cluster="1xA100", grad_accum=64, seq_len=length) for length in (2048, 65536)
    )
    assert predict(long).sigma[0] > 1.15 * predict(short).sigma[0]


def test_normal_distribution() -> None:
    assert normal_cdf(np.array([-1.2815516, 0.0, 1.2815516])) == pytest.approx([0.1, 0.5, 0.9], abs=1e-7)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = GRID.columns.flat()
    chunk, last = 1000, columns.shape[0] - 1
    assert last > 2 * chunk
    monkeypatch.setattr("platform.cost_model.predict.CHUNK", chunk)
    full = predict(columns)
    rows = np.array([0, chunk - 1, chunk, last])
    few = predict(columns.take(rows))
    assert np.array_equal(full.step.total_s[rows], few.step.total_s)
    assert np.array_equal(full.memory.needed_gib[rows], few.memory.needed_gib)


def _lines() -> list[str]:
    lines: list[str] = []
    for name, cluster in REFERENCES:
        space = search_spaces.load(name)
        for recipe in space.recipes:
            plan = best_plan(space, recipe, find_cluster(cluster), top=3)
            lines.append(f"{recipe.label} on {cluster}: {plan.num_layouts} of {plan.num_points} fit")
            for planned in plan.best:
                shares = " ".join(f"{part} {share:.3f}" for part, share in planned.shares.items())
                lines.append(
                    f"  {planned.layout.label} | {planned.micro_batch} x {planned.grad_accum} | {planned.step_s:.4g} s"
                    f" [{planned.low_s:.4g}, {planned.high_s:.4g}] | {planned.needed_gib:.1f} GiB | {shares}"
                )
    return lines


def test_predictions_of_reference_models_are_the_golden_ones(regenerate_golden: bool) -> None:
    text = "\n".join(_lines()) + "\n"
    if regenerate_golden:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "read the change; if it is meant, run pytest --regenerate-golden"


def test_a_memory_cap_is_obeyed() -> None:
    space = search_spaces.load("bloom7b")
    plan = best_plan(space, space.recipe, with_memory_cap(find_cluster("8xH100"), 40.0))
    assert plan.best and all(planned.needed_gib <= 40.0 for planned in plan.best)
    narrow = dataclasses.replace(space, micro_batches=(16,))
    assert not best_plan(narrow, space.recipe, with_memory_cap(find_cluster("8xH100"), 20.0)).best


def test_a_grid_is_predicted_as_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predicts a grid in one piece, and in chunks of which the last is shorter."""
    columns = GRID.columns.flat()
    for chunk in (10**9, 1000):
        monkeypatch.setattr("platform.cost_model.predict.CHUNK", chunk)
        grid, rows = predict(GRID.columns), predict(columns)
        assert grid.step.total_s.shape == columns.shape
        for part in ("total_s", "compute_s", "data_s", "bubble_s"):
            np.testing.assert_allclose(getattr(grid.step, part), getattr(rows.step, part), rtol=1e-12)
        np.testing.assert_allclose(grid.memory.needed_gib, rows.memory.needed_gib, rtol=1e-12)
        np.testing.assert_array_equal(grid.memory.binding_rank, rows.memory.binding_rank)
        np.testing.assert_allclose(grid.high_s, rows.high_s, rtol=1e-12)


@pytest.mark.parametrize("tp", [1, 4, 8])
def test_what_the_host_s_speed_moves_is_the_step_s_derivative(tp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = point(Layout(engine="deepspeed", tp=tp), cluster="8xA100", model=GPT2, seq_len=256, micro_batch=2)
    step = steps.step_time(columns)
    told_s = float(under_the_host_s(columns, step)[0])
    plain, more = host.host_layer_s, 1e-3
    monkeypatch.setattr(
        steps, "host_layer_s", lambda *columns: tuple((1 + more) * seconds for seconds in plain(*columns))
    )
    moved_s = float((steps.step_time(columns).total_s - step.total_s)[0]) / more
    assert moved_s > 0.1 * float(step.total_s[0]), "the host weighs here"
    assert told_s == pytest.approx(moved_s, rel=0.02)
