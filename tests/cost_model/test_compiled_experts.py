"""Tensors that torch's own partitioner saves for the backward pass of a compiled block with experts, compared with the
bytes that the memory model counts, with rows of experts that are most of a block's memory.
"""

# pyright: reportPrivateUsage=false

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version

from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.memory import _block_bytes
from search_spaces.qwen3 import QWEN3_30B_A3B
from trainers.engines.model_preparation import prepare
from trainers.kernels import compiled
from trainers.kernels.compiled import set_activation_budget
from trainers.models.model import build
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MENDED = Version("2.12")
"""The first torch that recomputes what autograd functions return inside a compiled checkpoint
(pytorch/pytorch#177396).
"""
LENGTH, MICRO_BATCH = 256, 4
MODEL = dataclasses.replace(
    QWEN3_30B_A3B, config="", num_layers=1, hidden_size=256, num_heads=4, num_kv_heads=2, head_width=64, ffn_size=96,
    num_experts=16, experts_per_token=8, vocab_size=64,
)  # fmt: skip
RECIPE = Recipe(
    model=MODEL,
    seq_len=LENGTH,
    global_batch=MICRO_BATCH,
    routing="balanced",
    compute_precision="bf16",
    state_precision="bf16",
)
ROWS = MICRO_BATCH * LENGTH * MODEL.experts_per_token * MODEL.hidden_size * 2
"""Bytes of the sorted rows of a block's experts."""


def _layout(checkpointing: str) -> Layout:
    return Layout(
        engine="fsdp",
        zero_stage=3,
        attention="sdpa",
        loss="chunked",
        compile="block",
        experts="grouped",
        checkpointing=checkpointing,  # type: ignore[arg-type]
    )


def _saved_bytes(checkpointing: str) -> int:
    """Returns the bytes, without parameters, that a compiled block saves for its backward pass, each storage once."""
    torch._dynamo.reset()
    model = build(MODEL, attention="sdpa", experts="grouped", balanced_tokens=LENGTH)
    model.module.to_empty(device="cpu")
    model.module.to(torch.bfloat16)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.fill_(0.01)
    table: Any = model.blocks[0].get_submodule("mlp.gate")
    places = torch.arange(LENGTH)[:, None] * MODEL.experts_per_token + torch.arange(MODEL.experts_per_token)
    table.balanced_experts = places % MODEL.num_experts
    (block,) = prepare(model, _layout(checkpointing)).units
    parameters = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    storages: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in parameters:
            storages[place] = tensor.untyped_storage().nbytes()
        return tensor

    values = torch.zeros(MICRO_BATCH, LENGTH, MODEL.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    turn = torch.zeros(1, LENGTH, MODEL.head_dim, dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        block(values, position_embeddings=(turn, turn), attention_mask=None)
    return sum(storages.values())


@pytest.fixture(autouse=True)
def _traced(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compiles as far as the partition alone, and leaves no activation budget behind."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager_decomp_partition")
    yield
    set_activation_budget(1.0)


@pytest.mark.parametrize("checkpointing", ["none", "budget_75", "budget_25", "full"])
def test_a_compiled_block_with_experts_keeps_what_the_memory_model_counts(checkpointing: str) -> None:
    batch = BatchPoint.of(RECIPE, _layout(checkpointing), MICRO_BATCH)
    columns = from_points([(RECIPE, _layout(checkpointing), batch)], find_cluster("1xH200"))
    _, kept, checkpoint, _ = (float(figure[0]) for figure in _block_bytes(columns))
    predicted = checkpoint if checkpointing == "full" else kept
    saved = _saved_bytes(checkpointing)
    if checkpointing == "full" and Version(torch.__version__) >= MENDED:
        saved += ROWS
    assert predicted == pytest.approx(saved, rel=0.06), (predicted / ROWS, saved / ROWS)


def test_the_stated_torch_for_cuda_still_keeps_the_rows_of_checkpointed_experts() -> None:
    """If this fails, delete the rows of `kept_bytes` in `platform/cost_model/blocks/experts.py`."""
    pins = (line.split("==") for line in (ROOT / "constraints-cuda.txt").read_text().splitlines() if "==" in line)
    assert Version(dict(pins)["torch"]) < MENDED
