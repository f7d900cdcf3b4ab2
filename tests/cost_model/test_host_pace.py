"""Steps that wait for the host: launches, hooks, gathers, checkpoints and optimizers."""

import dataclasses

import numpy as np
import pytest

from platform.cost_model.engines.fsdp import COLLECTIVE_HOST_S, SHARD_STEP_S
from platform.cost_model.host import CHECKPOINT_HOST_S, COMPILED_CALL_S, host_layer_s, pace_share, together_s
from platform.cost_model.layer_time import layer_seconds
from platform.cost_model.step_time import step_time
from tests.cost_model.points import GPT2, changed, fsdp, point
from tests.cost_model.test_step_time import total
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import Compile


def test_hand_fused_blocks_take_their_hosts_time_whatever_their_width() -> None:
    """Checks modules that nobody compiles: small blocks wait for the host, and longer the more ranks wait for each
    other.
    """
    layout = Layout(engine="ddp", tp=8)
    blocks = dict.fromkeys(("block_host", "block_host_backward"), 0.001) | {"host_skew": 5e-5}
    waits: list[float] = []
    for width in (1024, 2048):
        narrow = dataclasses.replace(
            GPT2, hidden_size=width, num_heads=16, num_kv_heads=16, ffn_size=4 * width, max_positions=2048
        )
        columns = changed(point(layout, cluster="8xA100", model=narrow), **blocks)
        waits.append(float(np.add(*host_layer_s(columns)[:2])[0]))
        assert total(columns) > narrow.num_layers * 0.002
    assert waits[0] == pytest.approx(waits[1]) == pytest.approx(0.002 + 4 * 3 * 5e-5)


def test_launches_that_block_are_never_hidden() -> None:
    layout = Layout(engine="deepspeed", zero_stage=1, dp_shard=8, compile="block")
    columns = point(layout, cluster="8xA100", grad_accum=64)
    assert float(step_time(columns).host_s[0]) < 1e-3 * total(columns)
    blocked = step_time(changed(columns, blocking=1.0))
    # 30 blocks, 64 micro-batches, 60 launches of 20 us, 3 calls of compiled code and 12 hooks of 100 us.
    assert float(blocked.host_s[0]) == pytest.approx(30 * 64 * (60 * 20e-6 + 3 * COMPILED_CALL_S + 12 * 1e-4))
    assert total(changed(columns, blocking=1.0)) > total(columns)


def test_pytorch_recomputes_all_but_the_last_product_of_a_block() -> None:
    seconds = {
        engine: layer_seconds(point(Layout(engine=engine, checkpointing="full"), cluster="1xA100"))  # type: ignore[arg-type]
        for engine in ("ddp", "deepspeed")
    }
    assert float(seconds["deepspeed"].again[0]) == pytest.approx(float(seconds["deepspeed"].forward[0]))
    assert 0.6 < float((seconds["ddp"].again / seconds["ddp"].forward)[0]) < 0.85


def test_small_micro_batches_wait_for_the_host_unless_compiled_whole() -> None:
    """Checks that compiling each block gains nothing: it is a call from Python, which costs as much as its fewer
    launches save.
    """
    eager, block, full = (
        point(
            Layout(engine="ddp", attention="sdpa", compile=compiled),  # type: ignore[arg-type]
            cluster="H200",
            model=GPT2,
            micro_batch=1,
            seq_len=128,
        )
        for compiled in ("none", "block", "model")
    )
    assert float((step_time(eager).host_s / step_time(eager).total_s)[0]) > 0.5
    assert total(block) == pytest.approx(total(eager), rel=0.1)
    assert total(full) < total(eager) / 2


def test_the_longer_of_host_and_device_sets_the_pace_softly() -> None:
    single = np.ones(1)
    assert float(together_s(single, single)[0]) == pytest.approx(2**0.25)
    assert float(together_s(0.3 * single, single)[0]) < 1.003 and float(together_s(single, 0.3 * single)[0]) < 1.003
    # What of a faster host a step gains, by a difference.
    host, device = 0.8 * single, single
    slower = np.log(together_s(host * 1.001, device) / together_s(host, device)) / np.log(1.001)
    assert pace_share(device, together_s(host, device)) == pytest.approx(slower, rel=0.01)


@pytest.mark.parametrize(
    ("stage", "compile_", "micro_batch", "measured_ms"),
    [
        (2, "none", 2, 32.1),
        (2, "none", 4, 28.8),
        (2, "none", 8, 30.3),
        (2, "none", 8, 27.8),  # another host
        (3, "none", 2, 39.6),
        (3, "none", 8, 34.7),  # another host
        (2, "block", 2, 26.0),
        (2, "block", 4, 33.0),
        (2, "block", 8, 37.1),
        (3, "block", 2, 41.0),
    ],
)
def test_fsdp2_at_the_hosts_pace(stage: int, compile_: Compile, micro_batch: int, measured_ms: float) -> None:
    """Compares milliseconds a micro-step of GPT-2 with measurements on one H200 (`gpt2-fsdp-small-1xH200.csv`,
    `gpt2-uncompiled-1xH200.csv`).
    """
    layout = fsdp(attention="sdpa", loss="chunked", compile=compile_, zero_stage=stage)
    columns = point(
        layout, cluster="H200", model=GPT2, seq_len=1024, micro_batch=micro_batch, grad_accum=512 // micro_batch
    )
    assert 1e3 * total(columns) * micro_batch / 512 == pytest.approx(measured_ms, rel=0.25)


@pytest.mark.parametrize(("micro_batch", "measured_ms"), [(32, (64, 74)), (64, (121, 122))])
def test_fsdp2_compiled_at_the_devices_pace(micro_batch: int, measured_ms: tuple[float, float]) -> None:
    """Compares milliseconds a micro-step of GPT-2 with measurements on one H200 of two machines and on one H100."""
    layout = fsdp(attention="sdpa", loss="chunked", compile="block")
    columns = point(
        layout, cluster="H200", model=GPT2, seq_len=1024, micro_batch=micro_batch, grad_accum=512 // micro_batch
    )
    low, high = measured_ms
    assert 0.93 * low < 1e3 * total(columns) * micro_batch / 512 < 1.07 * high


@pytest.mark.parametrize(
    ("zero_stage", "grad_sync", "forward", "backward"),
    [(3, "every", 1, 2), (3, "last", 1, 1.25), (2, "every", 0.25, 1), (2, "last", 0.25, 0.25)],
)
def test_each_unit_gathered_or_reduced_among_ranks_costs_the_host(
    zero_stage: int, grad_sync: str, forward: float, backward: float
) -> None:
    """Compares the host's time in a micro-step, one of four, on four ranks and on one rank, where torch leaves the
    collectives out.
    """
    one_rank, four = (
        host_layer_s(
            point(
                fsdp(zero_stage=zero_stage, grad_sync=grad_sync, dp_shard=ranks),
                cluster="4xH200",
                model=GPT2,
                seq_len=1024,
                grad_accum=4,
            )
        )
        for ranks in (1, 4)
    )
    more = [float((many - single)[0]) / COLLECTIVE_HOST_S for single, many in zip(one_rank, four, strict=True)]
    assert more == pytest.approx([forward, backward, 0.0])


def test_an_eager_checkpoint_waits_for_python_and_no_hook_runs_twice() -> None:
    def more_s(compiled: str) -> float:
        plain, again = (
            point(
                fsdp(attention="eager", compile=compiled, checkpointing=checkpointing),
                cluster="1xH200",
                model=GPT2,
                seq_len=128,
            )
            for checkpointing in ("none", "full")
        )
        return (total(again) - total(plain)) / GPT2.num_layers

    assert more_s("none") == pytest.approx(CHECKPOINT_HOST_S + 90 * 7e-6, rel=0.05)
    assert more_s("block") < CHECKPOINT_HOST_S / 2


def test_the_optimizers_step_over_sharded_tensors_hides_where_the_device_is_behind() -> None:
    def waiting_s(micro_batch: int) -> float:
        columns = point(fsdp(), cluster="1xH200", model=GPT2, seq_len=1024, micro_batch=micro_batch)
        # Else the first micro-step of two reduces nothing, and the second adds to a sum of another type.
        columns = changed(columns, sync_every=1.0, gradient_bytes=float(columns.compute_bytes.flat[0]))
        accumulated = changed(columns, grad_accum=2.0)
        # What is left of a step of one micro-step without that micro-step.
        return 2 * float(step_time(columns).host_s[0]) - float(step_time(accumulated).host_s[0])

    assert waiting_s(1) == pytest.approx(12 * GPT2.num_layers * SHARD_STEP_S, rel=0.15)
    assert waiting_s(128) < 0.01 * waiting_s(1)
