"""Compressed gradients: the bytes that torch's own hook would exchange, and when squeezing them pays."""

import dataclasses

import pytest
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from platform.cost_model.columns import Columns
from platform.cost_model.compression import compression_values
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.lower_bound import lower_bound
from platform.cost_model.memory import peak_memory
from platform.cost_model.step_time import step_time
from tests.cost_model.points import BLOOM_7B1, GPT2
from trainers.models.model import build
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

DDP = Layout(engine="ddp", dp_replicate=16)
RECIPE = Recipe(model=GPT2, seq_len=1024, global_batch=128)


@pytest.mark.parametrize("model", [GPT2, BLOOM_7B1], ids=["gpt2", "bloom-7b1"])
@pytest.mark.parametrize("rank", [1, 4, 32])
def test_the_exchanged_share_is_that_of_torch_s_hook(model: ModelSpec, rank: int) -> None:
    before = after = 0
    for parameter in build(model, attention="eager").module.parameters():
        rows = parameter.shape[0]
        width = parameter.numel() // rows
        factored, uncompressed, factors = powerSGD_hook._should_compress(rows, width, min(rank, rows, width), 2)  # pyright: ignore[reportPrivateUsage]
        before += uncompressed
        after += factors if factored else uncompressed
    assert compression_values(model, f"powersgd_{rank}")["compression"] == pytest.approx(after / before, rel=1e-6)


def columns(compression: str, cluster: str) -> Columns:
    recipe = dataclasses.replace(RECIPE, compression=compression)  # type: ignore[arg-type]
    return from_points([(recipe, DDP, BatchPoint.of(recipe, DDP, 8))], find_cluster(cluster))


def test_squeezing_pays_where_links_are_slow() -> None:
    """Checks that compression shortens a step over the 10 Gbit/s of a p3.8xlarge node, and lengthens communication over
    the 3,600 Gbit/s of a node of eight H200.
    """
    slow = [
        float(step_time(columns(compression, "4xp3.8xlarge")).total_s[0])
        for compression in ("none", "bf16", "powersgd_4")
    ]
    assert slow[0] > slow[1] > slow[2]
    fast = [float(step_time(columns(compression, "2x8xH200")).data_s[0]) for compression in ("none", "powersgd_4")]
    assert fast[0] < fast[1]


def test_error_feedback_is_a_whole_gradient_more() -> None:
    plain, factored = (
        peak_memory(columns(compression, "2x8xH200")).allocated_gib[0] for compression in ("none", "powersgd_4")
    )
    gradient_gib = GPT2.num_parameters * 4 / 2**30
    assert factored - plain == pytest.approx(gradient_gib, rel=1e-3)
    recipe = dataclasses.replace(RECIPE, compression="powersgd_4")
    point = BatchPoint.of(recipe, DDP, 8)
    assert lower_bound(RECIPE, DDP, point).total_gib + gradient_gib == pytest.approx(
        lower_bound(recipe, DDP, point).total_gib
    )
