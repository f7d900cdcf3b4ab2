"""Costs of a vocabulary beside its products: the loss's traffic, and collectives of the ranks that share it."""

import numpy as np
import pytest

from platform.cost_model.columns import Columns
from platform.cost_model.compute import head_s
from platform.cost_model.links import Ring
from platform.cost_model.mesh import vocabulary_s
from platform.cost_model.stacks import fact
from platform.cost_model.step_time import step_time
from tests.cost_model.points import GPT2, point
from trainers.spec.layout import Layout

TOKENS = 4 * 1024


def _columns(*, tp: int = 1, pp: int = 1, grad_accum: int = 1, **values: float) -> Columns:
    layout = Layout(engine="ddp", tp=tp, pp=pp)
    columns = point(layout, cluster=f"{tp * pp}xA100", model=GPT2, micro_batch=4, seq_len=1024, grad_accum=grad_accum)
    return Columns.of({**columns.arrays(), **{name: np.array([value]) for name, value in values.items()}})


def _head_s(columns: Columns) -> float:
    return sum(float(part[0]) for part in head_s(columns))


def test_a_loss_whose_kernels_are_known_costs_what_they_move() -> None:
    """Checks Megatron-LM's loss: fp16 logits are cast, then each kernel reads and writes fp32 values."""
    forward, backward = (2 + 4) + 4 + (4 + 4) + (4 + 4) + 4 + (4 + 4), (4 + 4) + (4 + 2)
    assert fact("megatron-lm", "loss_moved_bytes", 0) == forward + backward == fact("nanotron", "loss_moved_bytes", 0)
    by_bytes, by_kernels = _columns(logit_bytes=14.0), _columns(logit_bytes=14.0, loss_moved=52.0)
    bandwidth = 2039e9 * 0.85
    by_hand = TOKENS * float(by_bytes.vocab[0]) * (52 - 2 * 14) / bandwidth
    assert _head_s(by_kernels) - _head_s(by_bytes) == pytest.approx(by_hand, rel=1e-6)


def test_ranks_that_share_a_vocabulary_reduce_its_ends() -> None:
    def all_reduced_s(columns: Columns, num_bytes: float) -> float:
        return float(Ring.of(columns, columns.tp, stride=1.0).all_reduce_s(np.array([num_bytes]))[0])

    hidden = TOKENS * GPT2.hidden_size * 2.0
    sizes = np.array([hidden]), np.array([2 * hidden])
    for pp, residuals in ((1, 2), (2, 1)):
        columns = _columns(tp=4, pp=pp, own_mesh=0.0)
        by_hand = residuals * all_reduced_s(columns, hidden) + 3 * all_reduced_s(columns, 4 * TOKENS)
        assert float(vocabulary_s(columns, *sizes)[0]) == pytest.approx(by_hand)
    assert float(vocabulary_s(_columns(), *sizes)[0]) == 0


def test_own_ranks_cut_what_the_embedding_gives_and_gather_what_the_head_takes() -> None:
    hidden = TOKENS * GPT2.hidden_size * 2.0
    for pp, chunks in ((1, 1), (2, 1), (1, 3)):
        vocab = chunks * 4 * 2.0**30 / TOKENS
        columns = _columns(tp=4, pp=pp, vocab=vocab, chunked_loss=1.0)
        ring = Ring.of(columns, columns.tp, stride=1.0)
        loss = (4 * TOKENS / chunks, 8 * TOKENS / chunks)
        by_hand = 2 * ring.gather_s(np.array([hidden])) + chunks * sum(ring.all_reduce_s(np.array([x])) for x in loss)
        if pp == 1:  # the residual stream is in fp32
            by_hand += ring.all_reduce_s(np.array([2 * hidden])) + ring.gather_s(np.array([2 * hidden]))
        counted = vocabulary_s(columns, np.array([hidden]), np.array([2 * hidden]))
        assert float(counted[0]) == pytest.approx(float(by_hand[0]))


def test_each_micro_step_reduces_them() -> None:
    """Checks that a step's tensor-parallel time is its blocks' and its vocabulary's, once a micro-batch."""
    shared = [step_time(_columns(tp=4, grad_accum=count)) for count in (1, 3)]
    tensor = [float(step.tensor_s[0]) for step in shared]
    assert tensor[1] == pytest.approx(3 * tensor[0])
    hidden = np.array([TOKENS * GPT2.hidden_size * 2.0])
    columns = _columns(tp=4)
    blocks = GPT2.num_layers * 8 * float(Ring.of(columns, columns.tp, stride=1.0).gather_s(hidden)[0])
    assert tensor[0] - blocks == pytest.approx(float(vocabulary_s(columns, hidden, 2 * hidden)[0]))
