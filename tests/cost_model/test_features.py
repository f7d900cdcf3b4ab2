"""Layouts on their way into the predictor: none is lost, merged or changed, and plan and search predict the same."""

import dataclasses
import json
import random
from typing import Any

import numpy as np
import pytest

import search_spaces
from benchmarks.cost_model_speed import Axes, make_grid
from platform.cost_model import engines
from platform.cost_model.columns import Columns
from platform.cost_model.features import from_points
from platform.cost_model.hardware import ClusterSpec, find_cluster
from platform.cost_model.kernels import BIASED_FLASH, HOPPER_RATE
from platform.cost_model.layout_arrays import AXES
from platform.cost_model.lower_bound import lower_bound
from platform.cost_model.ordering import known_columns
from platform.cost_model.predict import predict
from platform.cost_model.probed_cluster import cluster_with_probe
from platform.plan.__main__ import main
from platform.plan.best_layouts import best_plan
from platform.plan.points import points_of, recipes_of
from platform.search.setup.planning import make_plan
from search_spaces.candidate import Candidate
from search_spaces.space import Space
from tests.cost_model.points import BLOOM_7B1, GPT2, GPT_39B, point
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.engines import names, rules_of
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

VALUES = {
    "dp_replicate": (1, 1, 2, 4),
    "dp_shard": (1, 2, 4, 8),
    "tp": (1, 1, 1, 2, 4),
    "pp": (1, 1, 1, 2, 4),
    "cp": (1, 1, 1, 2),
    "grad_sync": ("every", "last"),
    "checkpointing": ("none", "selective", "every_4", "every_2", "full", "budget_75", "budget_50", "budget_25"),
    "offload": ("none", "none", "moments", "optimizer", "all"),
    "bucket_mib": (0, 0, 10, 500),
    "overlap": ("default", "default", "on", "off"),
    "prefetch": (0, 0, 1, 4),
    "reshard": (0, 0, 2, 4),
    "after_backward": ("free", "free", "keep"),
    "attention": ("eager", "sdpa", "flex", "flash4"),
    "mlp": ("plain", "plain", "plain", "quack"),
    "loss": ("plain", "plain", "chunked", "chunked", "quack"),
    "compile": ("none", "block", "model"),
    "cuda_graphs": ("off", "off", "on"),
    "fp8_weights": ("cast", "cast", "kept"),
}


SDPA = HOPPER_RATE["sdpa"]


def random_layouts(count: int) -> list[Layout]:
    """Returns `count` random valid layouts, the same at each call."""
    draw, layouts = random.Random(8), []
    while len(layouts) < count:
        engine = draw.choice(names())
        values = {axis: draw.choice(among) for axis, among in VALUES.items()}
        try:
            layouts.append(Layout(engine=engine, zero_stage=draw.choice(rules_of(engine).stages), **values))  # type: ignore[arg-type]
        except ValueError:
            continue
    return layouts


def values_of(columns: Columns, row: int) -> list[float]:
    return [float(np.broadcast_to(value, columns.shape)[row]) for value in columns.arrays().values()]


@pytest.mark.slow
def test_every_random_layout_survives_the_way_into_the_plan() -> None:
    """Checks that each layout which its engine does not refuse comes out as the one layout of a space of its values,
    unless the space skips it for one of the known reasons.
    """
    survived = 0
    for layout in random_layouts(800):
        recipe = Recipe(model=GPT_39B, seq_len=2048, global_batch=2 * layout.data_parallel)
        space = Space(
            name="one",
            summary="",
            recipe=recipe,
            axes={axis: (getattr(layout, axis),) for axis in AXES},
            micro_batches=(2,),
        )
        cluster = find_cluster(f"{layout.world_size}xH100")
        points = points_of(space, recipe, cluster)
        alone = dataclasses.replace(layout, tp=1, pp=1, cp=1)
        if standing_refusal(recipe, alone, alone.world_size):
            assert not points.layouts and sum(count for _, count in points.skipped) == 1
        elif points.layouts:
            # On one data-parallel rank both words for the gradients' sync mean the same.
            expected = dataclasses.replace(layout, grad_sync=points.layouts[0].grad_sync)
            assert points.layouts == (expected if layout.data_parallel == 1 else layout,)
            survived += 1
        elif not standing_refusal(recipe, layout, layout.world_size):
            assert {reason for reason, _ in points.skipped} <= {
                "attention flash4 was not tried with cp above 1: choose attention flex or sdpa",
                "mlp quack was not tried with tp above 1: choose mlp plain",
                "loss quack was not tried with tp above 1: choose loss chunked",
                "pp x virtual does not divide the blocks",
                "grad_sync every under a pipeline",
                "DeepSpeed's stages 2 and 3 under a pipeline",
                "micro-batches do not fill the pipeline, or the rounds of an interleaved schedule",
            }  # fmt: skip
    assert survived > 50


@pytest.mark.slow
def test_rows_made_together_are_those_made_alone() -> None:
    """Checks that a row does not depend on the layouts and recipes beside it, although words are numbered among all
    rows and recipes are grouped.
    """
    recipes = (
        Recipe(model=BLOOM_7B1, seq_len=2048, global_batch=64),
        Recipe(model=GPT2, seq_len=512, global_batch=64, compute_precision="fp32", optimizer="adafactor"),
        Recipe(model=GPT_39B, seq_len=1024, global_batch=64, state_precision="bf16", compression="none"),
    )
    points = [
        (recipes[place % 3], layout, BatchPoint(micro_batch=1 + place % 4, grad_accum=1 + place % 5))
        for place, layout in enumerate(random_layouts(100))
    ]
    cluster = find_cluster("4x8xH100")
    together = from_points(points, cluster)
    for row, point_of_row in enumerate(points):
        assert values_of(together, row) == values_of(from_points([point_of_row], cluster), 0), point_of_row


_PIPELINE = {"engine": "fsdp", "zero_stage": 2, "pp": 4}


@pytest.mark.parametrize("axis", [axis for axis in AXES if axis != "flags"])  # nothing is predicted of a command
def test_every_axis_reaches_the_features(axis: str) -> None:
    changes = {
        "engine": [{"engine": "ddp"}, {"engine": "deepspeed"}],
        "zero_stage": [{"engine": "fsdp", "zero_stage": stage} for stage in (2, 3)],
        "reshard": [{"engine": "fsdp", "zero_stage": 3, "dp_shard": 8, "reshard": ranks} for ranks in (0, 2, 4)],
        "overlap": [
            {"engine": "deepspeed", "zero_stage": 2, "grad_sync": "every", "overlap": word}
            for word in ("default", "on")
        ],
        "attention": [{"engine": "fsdp", "zero_stage": 3, "attention": word} for word in ("eager", "sdpa")],
        "bucket_mib": [{"engine": "ddp", "bucket_mib": size} for size in (0, 10, 25.5)],
        "experts": [{"engine": "ddp", "experts": word} for word in ("loop", "grouped")],
        "ep": [{"engine": "fsdp", "zero_stage": 3, "dp_shard": 8, "ep": ranks} for ranks in (1, 2, 4)],
        "cuda_graphs": [{"engine": "ddp", "cuda_graphs": word} for word in ("off", "on")],
        "fp8_weights": [{"engine": "ddp", "fp8_weights": word} for word in ("cast", "kept")],
        "cp_exchange": [{"engine": "ddp", "cp": 2, "cp_exchange": word} for word in ("gather", "all_to_all")],
        # An interleaved schedule goes with virtual stages: the two are told apart by the number of these.
        "schedule": [_PIPELINE, {**_PIPELINE, "schedule": "interleaved", "virtual": 2}],
        "virtual": [{**_PIPELINE, "schedule": "interleaved", "virtual": number} for number in (2, 4)],
        "dp_replicate": [{"engine": "ddp", "dp_replicate": ranks} for ranks in (1, 2, 4)],
    }.get(axis, [{"engine": "fsdp", "zero_stage": 3, axis: value} for value in dict.fromkeys(VALUES.get(axis, ()))])
    rows = [tuple(values_of(point(Layout(**change), cluster="4x8xH100"), 0)) for change in changes]  # type: ignore[arg-type]
    assert len(set(rows)) == len(rows) > 1


@pytest.mark.parametrize("name", [*search_spaces.names(), "gpt2_xxl"])
@pytest.mark.parametrize("num_devices", [1, 8])
def test_plan_and_search_predict_the_same(name: str, num_devices: int) -> None:
    """Checks that every layout of the space that a search would run is planned, with the same seconds and GiB."""
    space = search_spaces.load(name)
    cluster = Cluster(
        device_kind="cuda",
        device="NVIDIA H200",
        device_memory_gib=139.8,
        devices_per_node=num_devices,
        capability=(9, 0),
    )
    try:
        candidates, _ = space.candidates(num_devices)
    except ValueError as error:  # the space is of a number of devices, and says so
        assert space.num_workers is not None and num_devices < space.num_workers
        assert str(error) == f"space {name} takes {space.num_workers} devices, there are {num_devices}"
        return
    runs = [
        candidate
        for candidate in candidates
        if standing_refusal(candidate.recipe, candidate.layout, num_devices) is None
    ]
    spec = cluster_with_probe(cluster, None)
    planned = {
        (recipe, layout, batch): row
        for recipe in recipes_of(space)
        for layout, batch, row in _predicted(space, recipe, spec)
    }
    if not runs:
        assert not planned
        return
    columns = known_columns(runs, cluster, None)
    assert columns is not None
    keys = [(run.recipe, run.layout, batch) for run in runs for batch in run.batch_points()]
    searched = dict(zip(keys, _figures(columns), strict=True))
    runs_here = {key for key in planned if standing_refusal(key[0], key[1], num_devices) is None}
    assert runs_here == set(searched)
    for key, figures in searched.items():
        assert planned[key] == figures, key


def _figures(columns: Columns) -> list[tuple[float, float]]:
    """Returns the predicted seconds and GiB of each row."""
    prediction = predict(columns)
    return list(zip(prediction.step.total_s.tolist(), prediction.memory.needed_gib.tolist(), strict=True))


def _predicted(space: Space, recipe: Recipe, spec: ClusterSpec) -> list[tuple[Layout, BatchPoint, tuple[float, float]]]:
    points = points_of(space, recipe, spec)
    return list(
        zip(points.layouts, points.batches, _figures(points.columns(spec)) if points.layouts else [], strict=True)
    )


@pytest.mark.parametrize(
    ("base", "change"),
    [
        (("engine=fsdp", "zero_stage=3"), "offload=all"),
        (("engine=ddp",), "offload=moments"),
        (("engine=fsdp", "zero_stage=3"), "reshard=2"),
        (("engine=fsdp", "zero_stage=3"), "after_backward=keep"),
        (("engine=fsdp", "zero_stage=3"), "dp_shard=8"),
        (("engine=deepspeed", "zero_stage=3"), "prefetch=1"),
        (("engine=deepspeed", "zero_stage=2"), "bucket_mib=64"),
        (("engine=deepspeed", "zero_stage=2"), "overlap=on"),
    ],
)
def test_every_axis_counts_in_a_plan(base: tuple[str, ...], change: str, capsys: pytest.CaptureFixture[str]) -> None:
    def best(*changes: str) -> tuple[float, float]:
        arguments = ["bloom7b", "--cluster", "2x8xH100", "--top", "1", "--json"]
        assert main([*arguments, *(part for axis_change in changes for part in ("--set", axis_change))]) == 0
        layout = json.loads(capsys.readouterr().out)["recipes"][0]["layouts"][0]
        return layout["needed_gib"], layout["step_time_s"]

    assert best(*base, change) != best(*base)


def test_what_fits_on_one_device_by_offload_alone_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bloom7b", "--cluster", "1xH100", "--set", "offload=none"]) == 1
    assert "no layout of" in capsys.readouterr().err
    assert main(["bloom7b", "--cluster", "1xH100"]) == 0
    assert "offload moments" in " ".join(capsys.readouterr().out.split())
    assert main(["bloom7b", "--cluster", "1xH100", "--set", "offload=all"]) == 0
    assert "offload all" in " ".join(capsys.readouterr().out.split())


def test_budgets_are_layouts_of_their_own_and_what_is_compiled_is_called_so() -> None:
    space = search_spaces.load("gpt2").with_changes(["engine=ddp", "checkpointing=budget_75,budget_50,budget_25"])
    best = best_plan(space, space.recipe, find_cluster("1xH200"), top=100).best
    assert {predicted_layout.layout.checkpointing for predicted_layout in best} == {
        "budget_75",
        "budget_50",
        "budget_25",
    }
    compiled_space = search_spaces.load("gpt2").with_changes(["compute_precision=fp32", "compile=model"])
    assert {
        predicted_layout.layout.compile
        for predicted_layout in best_plan(compiled_space, compiled_space.recipe, find_cluster("1xH200"), top=100).best
    } == {"model"}


def test_named_points_are_all_planned() -> None:
    for name, count in (("bloom7b_kinds", 25), ("gpt2_fsdp", 14)):
        space = search_spaces.load(name)
        cluster = find_cluster("4xH200")
        rows = [row for recipe in recipes_of(space) for row in points_of(space, recipe, cluster).layouts]
        assert len(space.points) == count == len(rows), name


@pytest.mark.slow
def test_a_grid_has_the_rows_of_its_layouts() -> None:
    """Checks that a grid, which takes its degrees from the product of axes, gives the same words and degrees as its
    layouts one by one.
    """
    recipe = Recipe(model=GPT_39B, seq_len=2048, global_batch=64)
    cluster = find_cluster("2x8xA100")
    grid = make_grid(recipe, cluster, Axes(micro_batches=(1, 2)))
    columns = grid.columns.flat()
    shape = grid.columns.shape
    engines = ("ddp", "fsdp", "deepspeed")
    axes = Axes()
    for row in range(0, columns.shape[0], 37):
        *free, place = np.unravel_index(row, shape)
        checkpointing, attention, compiled, loss = (
            values[index] for values, index in zip(axes.free, free, strict=True)
        )
        numbers = {
            name: int(grid.layouts.numbers(name)[place])
            for name in ("zero_stage", "dp_replicate", "dp_shard", "tp", "pp")
        }
        every = bool(np.broadcast_to(grid.columns.sync_every, shape[-1:])[place])
        layout = Layout(
            engine=engines[int(grid.layouts.of_words(engines.index, "engine")[place])],  # type: ignore[arg-type]
            grad_sync="every" if every else "last",
            checkpointing=checkpointing,  # type: ignore[arg-type]
            attention=attention,  # type: ignore[arg-type]
            compile=compiled,  # type: ignore[arg-type]
            loss=loss,  # type: ignore[arg-type]
            **numbers,  # type: ignore[arg-type]
        )
        batch = BatchPoint.of(recipe, layout, int(grid.columns.micro_batch[place]))
        assert values_of(columns, row) == values_of(from_points([(recipe, layout, batch)], cluster), 0), layout


@pytest.mark.parametrize(
    ("architecture", "scales", "power", "copies", "flash"),
    [("bloom", 0, 0, 2, BIASED_FLASH), ("gpt2", 1, 1, 5, SDPA), ("gpt_neox", 1, 0, 2, SDPA), ("llama", 1, 0, 4, SDPA)],
)
def test_what_an_architecture_declares_of_its_modules_reaches_the_predictor(
    architecture: str, scales: float, power: float, copies: float, flash: float
) -> None:
    sizes: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_heads": 4,
        "vocab_size": 97,
        "max_positions": 2048,
    }
    model = ModelSpec(name="small", architecture=architecture, **sizes)
    row = point(Layout(engine="ddp", attention="sdpa"), cluster="1xH100", model=model)
    assert (row.scales_scores, row.power_activation, row.inner_copies, row.flash) == (scales, power, copies, flash)


def test_fused_attention_has_the_rate_of_its_kernel_and_device() -> None:
    def rate(attention: str, cluster: str) -> float:
        layout = Layout(engine="ddp", attention=attention)  # pyright: ignore[reportArgumentType]
        return point(layout, cluster=cluster, model=GPT2, seq_len=1024).flash.item()

    assert [rate(kernel, "1xH100") for kernel in ("flex", "sdpa", "flash4")] == [1.04, 1.38, 1.5]
    assert rate("flex", "1xA100") == rate("sdpa", "1xA100") == 1.0


def test_an_engine_that_the_model_does_not_know_is_neither_predicted_nor_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout, recipe = Layout(engine="ddp"), Recipe(model=GPT_39B, seq_len=2048, global_batch=8)
    cluster = Cluster(
        device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=1, capability=(9, 0)
    )
    candidate = Candidate(recipe=recipe, layout=layout, micro_batches=(1,))
    batch = BatchPoint(micro_batch=1, grad_accum=8)
    assert (
        lower_bound(recipe, layout, batch).total_gib > 139.8 and known_columns([candidate], cluster, None) is not None
    )
    monkeypatch.setitem(engines._COSTS, "ddp", None)  # pyright: ignore[reportPrivateUsage]
    assert lower_bound(recipe, layout, batch).total_gib == 0
    assert known_columns([candidate], cluster, None) is None
    assert [
        planned_candidate.micro_batches for planned_candidate in make_plan([candidate], (), cluster, None).candidates
    ] == [(1,)]
    space = search_spaces.load("gpt2")
    plan = best_plan(space, space.recipe, find_cluster("8xH100"), top=1000)
    assert {predicted_layout.layout.engine for predicted_layout in plan.best} == {"fsdp", "deepspeed"}
    assert "the cost model does not know engine ddp" in dict(plan.skipped)
