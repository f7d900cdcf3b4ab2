"""Collectives and saved tensors of a tensor-parallel rank's compiled block, compared with what the model counts."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import contextlib
from collections import Counter
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch.testing._internal.distributed.fake_pg import FakeStore

from platform.cost_model.columns import Columns
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.memory import _block_bytes
from platform.cost_model.mesh import Ring, tensor_s
from tests.cost_model.track_ranks import _exchanged
from trainers import engines
from trainers.engines.step import Unmarked
from trainers.kernels import compiled
from trainers.values.batch import BatchPoint
from trainers.values.layout import Layout
from trainers.values.recipe import Recipe
from trainers.values.spec import ModelSpec

pytestmark = pytest.mark.slow

TP, MICRO_BATCH, SEQ_LEN, HIDDEN = 4, 2, 128, 256
SPEC = ModelSpec(
    name="block",
    architecture="llama",
    num_layers=1,
    hidden_size=HIDDEN,
    ffn_size=704,
    num_heads=8,
    num_kv_heads=4,
    vocab_size=512,
)
RECIPE = Recipe(model=SPEC, seq_len=SEQ_LEN, global_batch=MICRO_BATCH, compute_precision="bf16", state_precision="fp32")


def _layout(checkpointing: Any) -> Layout:
    return Layout(engine="ddp", tp=TP, attention="sdpa", loss="chunked", compile="block", checkpointing=checkpointing)


def _columns(checkpointing: str) -> Columns:
    batch = BatchPoint(micro_batch=MICRO_BATCH, grad_accum=1)
    return from_points([(RECIPE, _layout(checkpointing), batch)], find_cluster("4xH200"))


@contextlib.contextmanager
def _graphs(monkeypatch: pytest.MonkeyPatch) -> Generator[list[torch.fx.GraphModule], None, None]:
    """Lists the graphs of a block's passes as they are compiled, on a rank of a group whose others do not exist."""
    graphs: list[torch.fx.GraphModule] = []

    def record_graph(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=record_graph,
        bw_compiler=record_graph,
        inference_compiler=lambda graph, _: make_boxed_func(graph.forward),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    monkeypatch.setattr(compiled, "BACKEND", backend)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=TP)
    torch._dynamo.reset()
    try:
        yield graphs
    finally:
        torch._dynamo.reset()
        dist.destroy_process_group()


def _passes(checkpointing: str, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    with _graphs(monkeypatch) as graphs:
        engine: Any = engines.create(RECIPE, _layout(checkpointing), torch.device("cpu"))
        for module in engine._modules:
            module.register_comm_hook(None, _exchanged)
        engine.step([torch.randint(0, 512, (MICRO_BATCH, SEQ_LEN + 1))], Unmarked())
        engine.close()
    forward, backward = graphs
    return forward, backward


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_a_compiled_block_has_the_collectives_that_are_counted(
    checkpointing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks their number and bytes under autocast, and that nothing copies what they exchange."""
    exchanged = Counter[int]()
    shape = torch.Size([MICRO_BATCH * SEQ_LEN, HIDDEN])
    for graph in _passes(checkpointing, monkeypatch):
        for node in graph.graph.nodes:
            if "all_gather" in str(node.target) or "reduce_scatter" in str(node.target):
                larger = max(node.meta["val"], node.args[0].meta["val"], key=torch.Tensor.numel)
                exchanged[larger.nbytes] += 1
            if "cat" in str(node.target):
                assert node.meta["val"].numel() < shape.numel()
    c = _columns(checkpointing)
    nbytes = np.array([2.0 * shape.numel()])
    counted = tensor_s(c, nbytes, c.full_checkpointing > 0) / Ring.of(c, c.tp, c.tp).gather_s(nbytes)
    assert exchanged == {2 * shape.numel(): round(float(counted[0]))}


def test_a_compiled_block_keeps_no_whole_sum_under_selective_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, _ = _passes("selective", monkeypatch)
    outputs: Any = list(forward.graph.nodes)[-1].args[0]
    saved = [each for each in outputs[1:] if isinstance(each, torch.fx.Node) and each.op != "placeholder"]
    saved_bytes = sum(each.meta["val"].nbytes for each in saved) + MICRO_BATCH * SEQ_LEN * HIDDEN * 4 // TP
    predicted = float(_block_bytes(_columns("selective"))[0][0])
    # Beside it: the largest values of attention.
    assert predicted < saved_bytes < 1.05 * predicted
