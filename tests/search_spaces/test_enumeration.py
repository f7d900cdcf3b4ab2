"""Enumeration of a space: every layout once, on all devices, in its declared order."""

import dataclasses
import itertools
import typing
from pathlib import Path
from typing import Any

import pytest

import search_spaces
from search_spaces.space import Point, Space
from trainers.spec import engines
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.support import refusal

GOLDEN = Path(__file__).parent / "golden" / "layouts.txt"
DEVICES = (1, 2, 4, 8, 16)
PRODUCTS = ("bloom7b", "gpt2", "gpt2_xl")


@pytest.mark.parametrize("num_devices", DEVICES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_every_layout_once_on_all_devices(name: str, num_devices: int) -> None:
    candidates, rejected = search_spaces.load(name).candidates(num_devices)
    assert len({candidate.key for candidate in candidates}) == len(candidates) > 0
    assert not rejected
    for candidate in candidates:
        layout = candidate.layout
        degrees = layout.dp_replicate * layout.dp_shard * layout.tp * layout.pp * layout.cp
        assert degrees == num_devices
        for point in candidate.batch_points():
            assert point.micro_batch * point.grad_accum * layout.data_parallel == candidate.recipe.global_batch


@pytest.mark.parametrize("num_devices", (3, 5, 6, 7))
def test_devices_that_divide_no_batch_are_told(num_devices: int) -> None:
    space = search_spaces.load("bloom7b").with_changes(["pp=1"])
    with pytest.raises(ValueError, match=f"512 is not a multiple of micro_batch 1 x {num_devices} data-parallel"):
        space.candidates(num_devices)
    candidates, _ = space.with_changes([f"global_batch={num_devices * 4}", "tp=1", "pp=1"]).candidates(num_devices)
    assert {candidate.micro_batches for candidate in candidates} == {(1, 2, 4)}


def test_all_three_engines_and_all_stages_are_there() -> None:
    candidates, _ = search_spaces.load("bloom7b").candidates(8)
    kinds = {(candidate.layout.engine, candidate.layout.zero_stage) for candidate in candidates}
    assert kinds == {("ddp", 0), ("fsdp", 2), ("fsdp", 3), *(("deepspeed", stage) for stage in range(4))}


def test_each_kind_of_each_axis_has_a_place_in_a_space_where_no_engine_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks one value of "every_4" and of "budget_75", each of which stands for the others."""
    monkeypatch.setattr("trainers.spec.optional_kernels.OptionalKernel.is_installed", True)
    gpus = Cluster(
        device_kind="cuda", device="NVIDIA H200", device_memory_gib=140, capability=(9, 0), devices_per_node=4
    )
    values_by_axis: dict[str, set[str]] = {}
    in_float8 = search_spaces.load("bloom7b").with_changes(["compute_precision=fp8_tensorwise"])
    for space in (*search_spaces.built_in_spaces(), in_float8):
        for candidate in space.candidates(4)[0]:
            if refusal(candidate.recipe, candidate.layout, gpus) is None:
                for axis, value in (*vars_of(candidate.layout).items(), ("compression", candidate.recipe.compression)):
                    values_by_axis.setdefault(axis, set()).add(str(value).partition("_")[0])
    hints = typing.get_type_hints(Layout) | {"compression": typing.get_type_hints(Recipe)["compression"]}
    if not any("pp" in rules.model_parallel for rules in engines.registered()):
        del hints["schedule"]
    names = {axis: {name.partition("_")[0] for name in typing.get_args(hint)} for axis, hint in hints.items()}
    assert {axis: kinds - values_by_axis[axis] for axis, kinds in names.items() if kinds - values_by_axis[axis]} == {}
    for axis in ("bucket_mib", "prefetch", "reshard"):
        assert len(values_by_axis[axis]) > 1, axis
    assert {"1", "2", "4"} <= values_by_axis["dp_replicate"] and {"1", "2", "4"} <= values_by_axis["dp_shard"]


def vars_of(layout: Layout) -> dict[str, object]:
    """Returns the layout's fields by name."""
    return {field.name: getattr(layout, field.name) for field in dataclasses.fields(layout)}


@pytest.mark.parametrize("name", ["gpt2", "gpt2_xl", "bloom7b", "llama3_8b", "qwen3_8b"])
def test_kernels_of_optional_packages_are_tried_where_they_are_installed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Checks that just the declared axes gain values, behind their own, until `--set` names them."""

    def values(axis: str) -> tuple[Any, ...]:
        return tuple(search_spaces.load(name).axes.get(axis, ()))

    assert not {"flash4", "quack"} & {*values("attention"), *values("mlp"), *values("loss")}
    monkeypatch.setattr("trainers.spec.optional_kernels.OptionalKernel.is_installed", True)
    assert values("attention")[-1] == "flash4" and values("loss")[-1] == "quack"
    assert ("quack" in values("mlp")) == (name in ("gpt2", "gpt2_xl", "bloom7b"))
    space = search_spaces.load(name)
    assert {axis for axis in space.axes if {"flash4", "quack"} & {*values(axis)}} == {*space.optional_axes}
    assert "loss" not in space.with_changes(["loss=plain"]).optional_axes


def test_gradient_sync_is_what_the_engine_can_do() -> None:
    candidates, _ = search_spaces.load("bloom7b").candidates(8)
    for candidate in candidates:
        if candidate.layout.engine == "deepspeed":
            assert candidate.layout.grad_sync == ("every" if candidate.layout.zero_stage >= 2 else "last")
    assert {candidate.layout.grad_sync for candidate in candidates if candidate.layout.engine == "ddp"} == {
        "last",
        "every",
    }
    alone, _ = search_spaces.load("bloom7b").candidates(1)
    assert {candidate.layout.grad_sync for candidate in alone if candidate.layout.engine != "deepspeed"} == {"last"}


def test_sharded_without_checkpointing_comes_first_for_bloom() -> None:
    candidates, _ = dataclasses.replace(search_spaces.load("bloom7b"), variations=()).candidates(8)
    layouts = [candidate.layout for candidate in candidates if candidate.layout.model_parallel == 1]
    assert layouts == [candidate.layout for candidate in candidates[: len(layouts)]]
    fastest = {"attention": "flex", "loss": "chunked", "compile": "block"}
    assert layouts[0] == Layout(engine="fsdp", zero_stage=3, dp_shard=8, grad_sync="last", **fastest)  # type: ignore[arg-type]
    of_fastest = [x for x in layouts if all(getattr(x, name) == value for name, value in fastest.items())]
    assert layouts[: len(of_fastest)] == of_fastest
    assert list(dict.fromkeys(x.checkpointing for x in of_fastest)) == ["none", "selective", "every_2", "full"]


def test_bloom_has_two_hundred_layouts_on_four_gpus_that_none_refuses() -> None:
    space = search_spaces.load("bloom7b")
    gpus = Cluster(
        device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, capability=(9, 0), devices_per_node=4
    )
    candidates, _ = space.candidates(4)
    able = [candidate for candidate in candidates if refusal(candidate.recipe, candidate.layout, gpus) is None]
    assert len(able) >= 200


def test_degrees_named_are_kept_and_the_rest_is_filled() -> None:
    space = search_spaces.load("bloom7b").with_changes(["engine=fsdp", "zero_stage=3", "tp=2", "pp=1", "dp_shard=2"])
    candidates, rejected = space.candidates(8)
    assert {(x.layout.dp_replicate, x.layout.dp_shard, x.layout.tp) for x in candidates} == {(2, 2, 2)}
    assert not rejected


def test_degrees_that_do_not_divide_the_devices_are_rejected_with_the_reason() -> None:
    candidates, rejected = search_spaces.load("bloom7b").with_changes(["tp=1,16"]).candidates(8)
    assert {candidate.layout.tp for candidate in candidates} == {1}
    assert {rejection.layout.tp for rejection in rejected} == {16}
    assert {rejection.reason for rejection in rejected} == {"tp 16 takes 16 devices, there are 8"}
    hybrid = search_spaces.load("bloom7b").with_changes(["engine=ddp,fsdp", "dp_replicate=2", "tp=1", "pp=1"])
    candidates, rejected = hybrid.candidates(8)
    assert {(candidate.layout.engine, candidate.layout.dp_shard) for candidate in candidates} == {("fsdp", 4)}
    assert {rejection.reason for rejection in rejected} == {"dp_replicate 2 takes 2 devices, there are 8"}


def test_a_space_that_splits_models_does_not_grow_on_one_device() -> None:
    space = search_spaces.load("bloom7b")
    assert len(space.candidates(1)[0]) == len(dataclasses.replace(space, model_parallel={}).candidates(1)[0])
    few, _ = space.with_changes(["compile=block"]).candidates(2)
    assert {(candidate.layout.tp, candidate.layout.pp) for candidate in few} == {(1, 1), (2, 1), (1, 2)}
    assert {candidate.layout.engine for candidate in few if candidate.layout.model_parallel > 1} == {"fsdp"}


def test_degrees_of_an_engine_that_has_none_are_left_out() -> None:
    """Checks that DeepSpeed has no layouts of these degrees, since it would be refused at each of them."""
    space = search_spaces.load("bloom7b").with_changes(["engine=deepspeed"])
    candidates, rejected = space.candidates(8)
    assert {candidate.layout.model_parallel for candidate in candidates} == {1} and not rejected
    miniature = search_spaces.load("bloom7b").miniature
    assert miniature is not None
    assert {candidate.layout.model_parallel for candidate in miniature.candidates(2)[0]} == {1}
    four = dataclasses.replace(miniature, num_workers=4)
    assert {candidate.layout.model_parallel for candidate in four.candidates(4)[0]} == {1, 2, 4}


def test_seed_002s_grid_is_whole_on_sixteen_devices() -> None:
    candidates, _ = search_spaces.load("tr3m_1b3").candidates(16)
    degrees = {(candidate.layout.tp, candidate.layout.pp) for candidate in candidates}
    assert degrees == set(itertools.product((1, 2, 4), (1, 2, 4)))
    assert {candidate.layout.checkpointing for candidate in candidates} == {"none", "full"}
    ladders = {candidate.micro_batches for candidate in candidates if candidate.layout.virtual == 1}
    assert (1, 2, 4, 8, 16) in ladders


def test_named_points_are_exactly_the_space() -> None:
    space = search_spaces.load("gpt2_zero")
    candidates, rejected = space.candidates(8)
    assert not rejected
    assert [candidate.name for candidate in candidates] == [
        f"zs{stage}_{precision}_gpus1_bs32_sl128" for stage in range(4) for precision in ("fp16", "fp32")
    ]
    for candidate in candidates:
        assert candidate.layout.world_size == 1
        assert (candidate.recipe.seq_len, candidate.recipe.global_batch, candidate.micro_batches) == (128, 32, (32,))
        assert candidate.name.startswith(f"zs{candidate.layout.zero_stage}_{candidate.recipe.compute_precision}_")
        assert [point.grad_accum for point in candidate.batch_points()] == [1]


def test_a_named_point_that_no_engine_can_mean_is_told_by_its_name() -> None:
    space = search_spaces.load("bloom7b_kinds")
    wrong = Point(name="mistaken", micro_batch=2, layout={"engine": "ddp"})
    with pytest.raises(
        ValueError, match=r"^point mistaken of space bloom7b_kinds: zero_stage of ddp must be one of 0, got 3$"
    ):
        dataclasses.replace(space, points=(*space.points, wrong)).candidates(2)


def test_fewer_devices_than_the_space_takes() -> None:
    miniature = search_spaces.load("bloom7b").miniature
    assert miniature is not None
    with pytest.raises(ValueError, match="takes 2 devices, there are 1"):
        miniature.candidates(1)


@pytest.mark.parametrize("name", PRODUCTS)
def test_miniatures_keep_the_architecture_and_say_what_they_are(name: str) -> None:
    space = search_spaces.load(name)
    miniature = space.miniature
    assert miniature is not None and miniature.recipe.model.miniature_of == space.recipe.model.name
    small, large = miniature.recipe.model, space.recipe.model
    assert (small.architecture, small.position, small.tied_embeddings) == (
        large.architecture,
        large.position,
        large.tied_embeddings,
    )
    assert small.num_parameters < 10e6
    candidates, _ = miniature.candidates(2)
    assert {candidate.layout.engine for candidate in candidates} == {"ddp", "fsdp", "deepspeed"}
    assert len(candidates) == 3, "few enough for final runs and a gate within four minutes"


def test_the_models_are_the_published_ones() -> None:
    counts = {space.name: space.recipe.model.num_parameters for space in search_spaces.built_in_spaces()}
    assert counts["bloom7b"] == 7_069_016_064
    assert counts["gpt2"] == counts["gpt2_zero"] == 124_439_808
    assert counts["gpt2_xl"] == 1_557_611_200


def test_a_space_cannot_be_invalid() -> None:
    space = search_spaces.load("gpt2")
    point = Point(name="a", micro_batch=1)
    for changes, sentence in (
        ({"name": ""}, "needs a name"),
        ({"axes": {"zero_stag": (1,)}}, "did you mean zero_stage"),
        ({"axes": {"zero_stage": ()}}, "has no values"),
        ({"micro_batches": ()}, "micro-batches of at least 1, got none"),
        ({"micro_batches": (0, 1)}, r"got \[0\]"),
        ({"num_workers": 0}, "num_workers"),
        ({"time_budget_s": 0.0}, r"time_budget_s of space .* must be above 0, got 0\.0"),
        ({"axes": {}, "points": (point, point)}, "share a name"),
        ({"points": (point,)}, "one value each for attention"),
    ):
        with pytest.raises(ValueError, match=sentence):
            dataclasses.replace(space, **changes)


def _kernels(layout: Layout) -> str:
    return f"{layout.attention}, {layout.loss} loss, compile {layout.compile}, checkpointing {layout.checkpointing}"


def _lines(space: Space, num_devices: int) -> list[str]:
    candidates, rejected = space.candidates(num_devices)
    lines = [f"{space.name} on {num_devices} devices: {len(candidates)} layouts"]
    for kernels, group in itertools.groupby(candidates, lambda candidate: _kernels(candidate.layout)):
        members = list(group)
        # Each set of kernels has the same layouts: the first shows them.
        for member in members if kernels == _kernels(candidates[0].layout) or space.points else members[:1]:
            ladder = ",".join(map(str, member.micro_batches))
            layout = member.layout
            lines.append(f"  {member.name or layout.label} | {layout.dp_replicate} x {layout.dp_shard} | {ladder}")
        if len(members) > 1:
            lines.append(f"    {len(members)} with {kernels}")
    lines += [f"  rejected {rejection.layout.label} | {rejection.reason}" for rejection in rejected]
    return lines


def test_enumerated_layouts_are_the_golden_ones(regenerate_golden: bool) -> None:
    lines: list[str] = []
    for space in search_spaces.built_in_spaces():
        few = (space.num_workers or (4 if any("dp_shard" in point.layout for point in space.points) else 1),)
        for num_devices in few if space.points else (1, 2, 8):
            lines += _lines(space, num_devices)
        if space.miniature is not None:
            lines += _lines(space.miniature, space.miniature.num_workers or 2)
    text = "\n".join(lines) + "\n"
    if regenerate_golden:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "read the change; if it is meant, run pytest --regenerate-golden"
