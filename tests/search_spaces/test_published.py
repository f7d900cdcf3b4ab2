"""Published configurations, as they state their values: planned and built exactly, or refused by the key."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import search_spaces
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.predict import predict
from trainers.models import build_check
from trainers.models.model import build
from trainers.spec import architectures
from trainers.spec.batch import BatchPoint
from trainers.spec.model import ModelSpec

PUBLISHED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "published.json").read_text())
"""Models by name: `config`, and transformers' count of `parameters`, or the key by which it is `refused`."""
PLANNED = {name: entry for name, entry in PUBLISHED.items() if "parameters" in entry}
WITH_EXPERTS = {name: entry for name, entry in PLANNED.items() if "active" in entry}
"""Models of which a token passes `active` parameters alone, by the shapes of transformers' modules."""
REFUSED = {name: entry for name, entry in PUBLISHED.items() if "refused" in entry}


def written(folder: Path, name: str) -> Path:
    path = folder / name / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(PUBLISHED[name]["config"]))
    return path


@pytest.mark.parametrize("name", PLANNED)
def test_it_is_planned_and_built_with_its_exact_parameters(name: str, tmp_path: Path) -> None:
    space = search_spaces.load(str(path := written(tmp_path, name)))
    assert space == search_spaces.load(str(path.parent)) and space.name == name
    model = space.recipe.model
    assert model.num_parameters == PLANNED[name]["parameters"]
    assert build_check.reason_against(model) == ""
    candidates, _ = space.with_changes(["global_batch=512", "dp_shard=8", "zero_stage=3"]).candidates(8)
    batch = BatchPoint(micro_batch=1, grad_accum=64)
    points = [(candidate.recipe, candidate.layout, batch) for candidate in candidates]
    steps = predict(from_points(points, find_cluster("8xH100")))
    assert candidates and np.all(np.isfinite(steps.step.total_s) & (steps.step.total_s > 0))
    assert space.miniature is not None and space.miniature.recipe.model.num_parameters < 10e6


def test_the_active_parameters_of_experts_are_counted_exactly() -> None:
    """Checks shallow models too, whose modules are built here: a weight of experts holds all of them."""
    assert len(WITH_EXPERTS) >= 12
    for name, entry in WITH_EXPERTS.items():
        spec = ModelSpec.from_config(entry["config"], name=name)
        assert spec.active_parameters == entry["active"] < spec.num_parameters
        shallow = build_check.with_few_blocks(spec)
        assert shallow.active_parameters == sum(
            parameter.numel() * spec.experts_per_token // spec.num_experts if ".experts." in name else parameter.numel()
            for parameter, name in build(shallow, attention="sdpa").names.items()
        )


def test_weights_published_in_four_bits_are_a_remark_and_no_other_model(tmp_path: Path) -> None:
    space = search_spaces.load(str(written(tmp_path, "gpt-oss-20b")))
    assert [remark for remark in space.remarks if "are stored as mxfp4: it is planned and trained in" in remark]
    plain = {key: value for key, value in PUBLISHED["gpt-oss-20b"]["config"].items() if key != "quantization_config"}
    assert space.recipe.model == ModelSpec.from_config(plain, name="gpt-oss-20b")
    with pytest.raises(ValueError, match="quantization_config of mine is stated: its weights are stored as fp8"):
        ModelSpec.from_config({**plain, "quantization_config": {"quant_method": "fp8"}}, name="mine")


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_its_key(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=REFUSED[name]["refused"]) as raised:
        search_spaces.load(str(written(tmp_path, name)))
    assert "\n" not in str(raised.value)


def test_every_architecture_has_a_published_model() -> None:
    models = [ModelSpec.from_config(entry["config"], name=name) for name, entry in PLANNED.items()]
    assert {model.architecture for model in models} == set(architectures.names())
