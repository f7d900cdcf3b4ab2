"""A checkpoint of any engine goes on in any other: the same weights, and the losses of the run that saved it."""

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.contract.group import run_group
from tests.training.engines_group import Curves, Hop, hops, recipe
from trainers.spec.layout import Layout

DDP = Layout(engine="ddp", dp_replicate=2)
FSDP = Layout(engine="fsdp", zero_stage=3, dp_shard=2)
ZERO_0 = Layout(engine="deepspeed", zero_stage=0, dp_replicate=2)
ZERO_1 = Layout(engine="deepspeed", zero_stage=1, dp_shard=2)
ZERO_2 = Layout(engine="deepspeed", zero_stage=2, dp_shard=2, grad_sync="every")
ZERO_3 = dataclasses.replace(ZERO_2, zero_stage=3)
DDP_MOMENTS, FSDP_MOMENTS = (dataclasses.replace(layout, offload="moments") for layout in (DDP, FSDP))
EVERY = (DDP, FSDP, ZERO_0, ZERO_1, ZERO_2, ZERO_3)
FP32, BF16 = recipe(), recipe(compute_precision="bf16")
PURE = recipe(compute_precision="bf16", state_precision="bf16")
ADAFACTOR = recipe(optimizer="adafactor")
HOPS_BY_NAME = {
    "ddp": (FP32, DDP, EVERY),
    "fsdp": (FP32, FSDP, (FSDP, DDP)),
    "zero 1": (BF16, ZERO_1, (ZERO_1, FSDP)),
    "zero 2": (FP32, ZERO_2, (ZERO_2, ZERO_3)),
    "zero 3": (BF16, ZERO_3, (ZERO_3, ZERO_2)),
    "bf16 states": (PURE, FSDP, (FSDP, ZERO_1, ZERO_3)),
    "moments of ddp": (PURE, DDP_MOMENTS, (DDP_MOMENTS, FSDP, DDP)),
    "to moments": (FP32, FSDP, (FSDP, FSDP_MOMENTS, DDP_MOMENTS)),
    "adafactor": (ADAFACTOR, DDP, (DDP, ZERO_0)),
}

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp("checkpoints") for name in HOPS_BY_NAME}


@pytest.fixture(scope="module")
def curves(folders: dict[str, Path]) -> dict[str, Curves]:
    """Returns the curves of each entry of `HOPS_BY_NAME`, all played in one group of two ranks."""
    played = [
        Hop(recipe=hop_recipe, saved_by=saved_by, loaded_by=loaded_by, folder=str(folders[name]))
        for name, (hop_recipe, saved_by, loaded_by) in HOPS_BY_NAME.items()
    ]
    return dict(zip(HOPS_BY_NAME, run_group(hops, played, 2), strict=True))


@pytest.mark.parametrize("name", HOPS_BY_NAME)
def test_the_engine_that_saved_goes_on_bit_for_bit(name: str, curves: dict[str, Curves]):
    curve = curves[name]
    assert curve.continued[0] == curve.undisturbed
    assert len(set(curve.undisturbed)) == len(curve.undisturbed)


@pytest.mark.parametrize("name", HOPS_BY_NAME)
def test_another_engine_goes_on_from_the_same_weights_with_the_same_losses(name: str, curves: dict[str, Curves]):
    curve, hop_recipe = curves[name], HOPS_BY_NAME[name][0]
    for weights in curve.weights[1:]:
        assert all(torch.equal(weight, curve.weights[0][key]) for key, weight in weights.items())
    # Sums of 16-bit products and gradients are rounded elsewhere; a state that is left out gives 50 times as much.
    error = {"fp32": 1e-6, "bf16": 1e-3}[hop_recipe.compute_precision] if hop_recipe is not PURE else 3e-3
    for losses in curve.continued[1:]:
        assert losses == pytest.approx(curve.undisturbed, rel=error)


def test_one_rank_goes_on_from_the_checkpoint_of_two(folders: dict[str, Path], curves: dict[str, Curves]):
    alone = (
        Layout(engine="ddp"),
        Layout(engine="fsdp", zero_stage=3),
        Layout(engine="deepspeed", zero_stage=1),
        Layout(engine="deepspeed", zero_stage=3, grad_sync="every"),
    )
    (curve,) = run_group(hops, [Hop(recipe=FP32, saved_by=None, loaded_by=alone, folder=str(folders["ddp"]))], 1)
    for losses, weights in zip(curve.continued, curve.weights, strict=True):
        assert losses == pytest.approx(curves["ddp"].undisturbed, rel=1e-6)
        assert all(torch.equal(weight, curves["ddp"].weights[0][name]) for name, weight in weights.items())
