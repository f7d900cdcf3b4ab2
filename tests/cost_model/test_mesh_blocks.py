"""Collectives and saved tensors of a compiled block under tensor and context parallelism, as the model counts them."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any, Literal

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
from platform.cost_model.links import Ring
from platform.cost_model.memory import _block_bytes
from platform.cost_model.mesh import context_s, tensor_s
from tests.cost_model.track_ranks import _exchanged
from trainers.engines.create import create_engine
from trainers.kernels import compiled
from trainers.marks.step import Unmarked
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

pytestmark = pytest.mark.slow

RANKS, MICRO_BATCH, SEQ_LEN, HIDDEN = 4, 2, 128, 256
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


def _layout(degree: Literal["tp", "cp"], checkpointing: Any) -> Layout:
    layout = Layout(engine="ddp", attention="sdpa", loss="chunked", compile="block", checkpointing=checkpointing)
    return dataclasses.replace(layout, **{degree: RANKS})


def _columns(layout: Layout) -> Columns:
    batch = BatchPoint(micro_batch=MICRO_BATCH, grad_accum=1)
    return from_points([(RECIPE, layout, batch)], find_cluster("4xH200"))


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
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    torch._dynamo.reset()
    try:
        yield graphs
    finally:
        torch._dynamo.reset()
        dist.destroy_process_group()


def _passes(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    with _graphs(monkeypatch) as graphs:
        engine: Any = create_engine(RECIPE, layout, torch.device("cpu"))
        for module in engine._modules:
            module.register_comm_hook(None, _exchanged)
        engine.step([torch.randint(0, 512, (MICRO_BATCH, SEQ_LEN + 1))], Unmarked())
        engine.close()
    forward, backward = graphs
    return forward, backward


def _exchanges(graph: torch.fx.GraphModule) -> Iterator[int]:
    """Yields the bytes of what each gather or scatter has on all ranks together."""
    for node in graph.graph.nodes:
        if "all_gather" in str(node.target) or "reduce_scatter" in str(node.target):
            yield max(node.meta["val"].nbytes, node.args[0].meta["val"].nbytes)


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_a_compiled_block_has_the_collectives_that_are_counted(
    checkpointing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks their number and bytes under autocast, and that nothing copies what they exchange."""
    layout, nbytes = _layout("tp", checkpointing), 2 * MICRO_BATCH * SEQ_LEN * HIDDEN
    graphs = _passes(layout, monkeypatch)
    copies = [node for graph in graphs for node in graph.graph.nodes if "cat" in str(node.target)]
    assert all(node.meta["val"].numel() < nbytes // 2 for node in copies)
    c = _columns(layout)
    hidden = np.array([float(nbytes)])
    counted = tensor_s(c, hidden, c.full_checkpointing > 0) / Ring.of(c, c.tp, stride=1.0).gather_s(hidden)
    assert Counter(exchange for graph in graphs for exchange in _exchanges(graph)) == {nbytes: round(float(counted[0]))}


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_a_compiled_block_gathers_keys_and_values_as_counted(
    checkpointing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = _layout("cp", checkpointing)
    nbytes = 2 * 2 * MICRO_BATCH * SEQ_LEN * SPEC.num_kv_heads * SPEC.head_dim
    c = _columns(layout)
    seconds = context_s(c, c.micro_batch * c.seq_len / c.cp, c.full_checkpointing > 0)
    counted = seconds / Ring.of(c, c.cp, stride=c.tp).gather_s(np.array([float(nbytes)]))
    exchanges = Counter(exchange for graph in _passes(layout, monkeypatch) for exchange in _exchanges(graph))
    assert exchanges == {nbytes: round(float(counted[0]))}


def test_a_compiled_block_keeps_no_whole_sum_under_selective_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = _layout("tp", "selective")
    forward, _ = _passes(layout, monkeypatch)
    outputs: Any = list(forward.graph.nodes)[-1].args[0]
    saved = [output for output in outputs[1:] if isinstance(output, torch.fx.Node) and output.op != "placeholder"]
    saved_bytes = sum(output.meta["val"].nbytes for output in saved) + MICRO_BATCH * SEQ_LEN * HIDDEN * 4 // RANKS
    predicted = float(_block_bytes(_columns(layout))[0][0])
    # Beside it: the largest values of attention.
    assert predicted < saved_bytes < 1.05 * predicted
