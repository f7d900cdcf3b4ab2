"""A space tries every axis and value, or says why not."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import search_spaces
from platform.plan.__main__ import main
from search_spaces.gpt2 import GPT2
from search_spaces.llama3 import LLAMA3_8B
from search_spaces.space import Space
from search_spaces.variations import NARROWED
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec


def _of_config(model: ModelSpec, folder: Path) -> Space:
    (folder / "config.json").write_text(json.dumps(model.to_config()))
    return search_spaces.load(str(folder))


def _values(space: Space) -> Mapping[str, set[Any]]:
    """Returns all values by axis; the default of one that the space does not name."""
    products = (space.axes, space.model_parallel, *space.variations)
    layouts = (point.layout for point in space.points)
    values: dict[str, set[Any]] = {}
    for axes in (*products, *({axis: (value,) for axis, value in layout.items()} for layout in layouts)):
        for axis, listed in axes.items():
            values.setdefault(axis, set()).update(listed)
    for axis in values:
        if not all(axis in product for product in products):
            values[axis] |= {getattr(Layout, axis)} - {None} if hasattr(Layout, axis) else set()
    return values


@pytest.fixture(autouse=True)
def every_kernel_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.spec.optional_kernels.OptionalKernel.is_installed", True)


@pytest.mark.parametrize("model", [GPT2, LLAMA3_8B], ids=lambda model: model.name)
def test_a_config_json_has_every_axis_and_value_of_the_built_in_spaces(model: ModelSpec, tmp_path: Path) -> None:
    values_of_config = _values(_of_config(model, tmp_path))
    lacking: dict[str, set[Any]] = {}
    for space in search_spaces.built_in_spaces():
        for axis, values in _values(space).items():
            if missing := values - values_of_config.get(axis, set()):
                lacking.setdefault(axis, set()).update(missing)
    if model.gated:  # a kernel of GELU
        assert lacking.pop("mlp") == {"plain", "quack"} - values_of_config["mlp"]
    assert lacking.pop("experts") == {"grouped", "loop"}, "the model has none"
    assert lacking.pop("ep") == {1, 2, 4, 8}, "nor ranks that share them out"
    assert lacking.pop("offload") == {"optimizer", "all"} and "offload" in NARROWED
    assert lacking == {}


def _narrower(space: Space, values_of_config: Mapping[str, set[Any]]) -> Iterator[str]:
    for axis, values in values_of_config.items():
        if values - _values(space).get(axis, {getattr(Layout, axis, None)}):
            yield axis


@pytest.mark.parametrize("name", search_spaces.names())
def test_a_built_in_space_says_why_it_has_fewer_values_than_a_config_json_of_its_model(
    name: str, tmp_path: Path
) -> None:
    space = search_spaces.load(name)
    if space.points:  # it is exactly these
        return
    values_of_config = _values(_of_config(space.recipe.model, tmp_path))
    assert {axis for axis in _narrower(space, values_of_config) if axis not in space.narrowed} == set()


def test_what_is_not_tried_in_full_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = _of_config(GPT2, tmp_path)
    varied = {axis for axes in space.variations for axis in axes}
    assert set(space.narrowed) == varied | {"grad_sync", "offload"}
    assert main([str(tmp_path), "--cluster", "1xH200", "--top", "1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(sentence in shown for sentence in space.not_in_full)
    assert "checkpointing" not in space.with_changes(["checkpointing=full"]).narrowed


def test_variations_are_tried_one_at_a_time_where_their_engine_has_them(tmp_path: Path) -> None:
    space = _of_config(GPT2, tmp_path)
    layouts = [candidate.layout for candidate in space.candidates(8)[0]]
    assert {layout.dp_shard for layout in layouts if layout.is_hybrid} == {2, 4}
    assert {layout.reshard for layout in layouts} == {0, 2, 4}
    assert {layout.checkpointing for layout in layouts} >= {"budget_25", "every_4", "selective"}
    options = ("offload", "prefetch", "reshard", "overlap", "is_hybrid")
    assert max(sum(map(bool, (layout.is_set(axis) for axis in options[:4]))) for layout in layouts) == 1
    alone = [candidate.layout for candidate in space.candidates(1)[0]]
    assert not any(layout.is_set(axis) for layout in alone for axis in ("prefetch", "bucket_mib", "overlap"))


def test_fp8_weights_are_kept_beside_every_way_to_save_memory_in_fp8_recipes_alone() -> None:
    space = search_spaces.load("bloom7b").with_changes(["compute_precision=bf16,fp8_tensorwise,fp8_rowwise"])
    kept = [candidate for candidate in space.candidates(1)[0] if candidate.layout.is_set("fp8_weights")]
    assert {candidate.recipe.compute_precision for candidate in kept} == {"fp8_tensorwise"}
    assert {(candidate.layout.engine, candidate.layout.compile) for candidate in kept} == {("ddp", "block")}
    assert sorted(
        (candidate.layout.checkpointing, candidate.layout.loss, candidate.layout.offload) for candidate in kept
    ) == [
        (checkpointing, loss, offload)
        for checkpointing in ("full", "none", "selective")
        for loss in ("chunked", "plain")
        for offload in ("moments", "none")
    ]
