"""The state that ranks save of a model that is split over them is the plain model's, each value once."""

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.contract import whole_tensors
from tests.contract.cases import recipe
from tests.contract.group import run_group
from tests.contract.mesh_cases import MODELS
from trainers import data
from trainers.engines.create import create_engine
from trainers.marks.step import Unmarked
from trainers.spec.layout import Layout

pytestmark = pytest.mark.contract

FSDP = Layout(engine="fsdp", zero_stage=3, attention="sdpa")
LAYOUTS = {
    "replicas, tp": ("gpt2", Layout(engine="ddp", dp_replicate=2, tp=2, attention="sdpa")),
    "shards, tp": ("gpt2", dataclasses.replace(FSDP, dp_shard=2, tp=2)),
    "cp, tp": ("llama", dataclasses.replace(FSDP, cp=2, tp=2)),
    "replicas, cp": ("bloom", Layout(engine="ddp", dp_replicate=2, cp=2, attention="sdpa")),
    "pp, tp": ("gpt2", dataclasses.replace(FSDP, pp=2, tp=2)),
}


def _states(layouts: dict[str, tuple[str, Layout]]) -> dict[str, Any]:
    """Returns for each layout the whole weights, all that ranks save by key, and the validation loss of every rank."""
    states_by_name: dict[str, Any] = {}
    for name, (model, layout) in layouts.items():
        chosen = recipe(MODELS[model])
        engine = create_engine(chosen, layout, torch.device("cpu"))
        tokens = torch.from_numpy(data.source(chosen).sequences(0, range(2)))
        engine.step([tokens] * 2, Unmarked())
        state = engine.training_state()
        saved = {
            key: (value.shape, [(p.offsets, p.tensor.clone()) for p in value.saved_parts])
            for key, value in state.items()
        }
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, (saved, engine.loss(tokens).item()))
        full_weights = whole_tensors.weights(engine)
        states_by_name[name] = {
            "whole": full_weights,
            "saved": [saved_parts for saved_parts, _ in ranks],
            "losses": [loss for _, loss in ranks],
        }
        engine.close()
    return states_by_name


@pytest.fixture(scope="module")
def states() -> dict[str, Any]:
    return run_group(_states, LAYOUTS, 4)


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_value_is_saved_once_where_it_stands_in_the_plain_model(name: str, states: dict[str, Any]) -> None:
    state = states[name]
    for kind in ("weight", "exp_avg", "exp_avg_sq"):
        for parameter, weight in state["whole"].items():
            assembled, count = torch.full_like(weight, torch.nan), torch.zeros_like(weight)
            for saved in state["saved"]:
                shape, parts = saved.get(f"{kind}/{parameter}", (weight.shape, []))
                assert tuple(shape) == tuple(weight.shape)
                for offsets, values in parts:
                    box = tuple(
                        slice(offset, offset + size) for offset, size in zip(offsets, values.shape, strict=True)
                    )
                    assembled[box] = values
                    count[box] += 1
            assert torch.equal(count, torch.ones_like(count)), f"{kind} of {parameter}"
            assert kind != "weight" or torch.equal(assembled, weight), parameter
    keys = {key.partition("/")[2] for saved in state["saved"] for key in saved}
    assert keys == state["whole"].keys()


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_loss_of_every_rank_is_that_of_its_whole_sequences(name: str, states: dict[str, Any]) -> None:
    """Checks the losses where all ranks are given the same sequences."""
    losses = states[name]["losses"]
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)
