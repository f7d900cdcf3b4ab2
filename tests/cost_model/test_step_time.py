"""Step times: formulas by hand, laws that must hold, and the ten rows of Megatron-LM's table."""

import dataclasses
import math

import numpy as np
import pytest

from platform.cost_model.collectives import all_reduce_s, gather_s
from platform.cost_model.columns import Columns, from_rows
from platform.cost_model.compute import UNIT_VALUES, head_s, matmul_s
from platform.cost_model.engines.deepspeed import GRADIENT_HOST_S
from platform.cost_model.features import PREFETCH
from platform.cost_model.hardware import find_device
from platform.cost_model.kernels import LOGIT_BYTES
from platform.cost_model.layer_time import layer_seconds
from platform.cost_model.step_time import StepTime, step_time
from platform.validate.evaluation import merged, score_table
from platform.validate.metrics import scores
from platform.validate.published_run import interpret
from platform.validate.rows import read_rows
from tests.cost_model.points import GPT2, GPT_39B, HOP, TABLES, changed, fsdp, point
from trainers.spec.layout import Layout


def total(columns: Columns) -> float:
    return float(step_time(columns).total_s[0])


def test_parts_add_up() -> None:
    columns = point(
        Layout(engine="deepspeed", zero_stage=1, dp_shard=4, tp=8, pp=2),
        cluster="8x8xA100",
        model=GPT_39B,
        grad_accum=16,
    )
    step = step_time(columns)
    parts = [getattr(step, field.name)[0] for field in dataclasses.fields(StepTime) if field.name != "total_s"]
    assert sum(parts) == pytest.approx(float(step.total_s[0]))
    assert min(parts) >= 0


def test_a_large_product_runs_at_the_sustained_rate() -> None:
    columns = point(fsdp(), cluster="1xA100")
    size = np.array([16384.0])
    sustained = 2 * 16384**3 / float(matmul_s(columns, size, size, size)[0])
    share = find_device("A100").matmul_share
    assert 0.95 * 312e12 * share < sustained < 312e12 * share


def test_a_sum_of_two_types_is_bound_by_its_loads_and_alibi_slows_attention() -> None:
    """Checks kernels of BLOOM-7b1's trace on two H200, 4 sequences a micro-step: 281 us to add 67.1 million gradients
    in bf16 to a sum in fp32, 59.9 ms of FlexAttention.
    """

    def of(values: float = 0.0, state_precision: str = "fp32") -> tuple[float, float]:
        layout = fsdp(zero_stage=2, dp_shard=2, grad_sync="last", attention="flex", compile="block")
        columns = point(layout, cluster="2xH200", micro_batch=4, grad_accum=64, state_precision=state_precision)
        attention = 30 * float(layer_seconds(columns).attention[0])
        more = float(columns.layer_parameters[0]) + values
        # Under the power cap the sum would also let the products run faster.
        layer = layer_seconds(changed(columns, layer_parameters=more, power_share=math.inf))
        return float(layer.backward[0]), attention

    (without, attention), (added, _) = of(), of(67.1e6)
    assert added - without == pytest.approx(281e-6, rel=0.05)
    assert attention == pytest.approx(59.9e-3, rel=0.04)
    (without, _), (added, _) = of(state_precision="bf16"), of(67.1e6, state_precision="bf16")
    assert added - without < 0.5 * 281e-6, "bf16 is added to bf16 by vectors"


def test_an_odd_vocabulary_is_slow_unless_it_is_padded_or_compiled() -> None:
    """Checks the output head of GPT-2 for 16 sequences of 1,024 on one H200, where this project measured its products
    at 13.3, 9.0 and 8.3 ms.
    """
    columns = point(Layout(engine="ddp"), cluster="1xH200", model=GPT2, seq_len=1024, micro_batch=16)
    padded, even = changed(columns, vocab=50304.0), changed(columns, vocab=50258.0)
    compiled = changed(columns, logit_bytes=LOGIT_BYTES["compiled"], pads_vocabulary=1.0)
    heads = [sum(float(part[0]) for part in head_s(these_columns)) for these_columns in (columns, even, padded)]
    assert heads[0] - heads[2] == pytest.approx(0.0255, rel=0.2)
    assert heads[0] > 1.3 * heads[1] > 1.3 * heads[2]
    assert sum(float(part[0]) for part in head_s(compiled)) < heads[2]
    chunked = changed(columns, logit_bytes=LOGIT_BYTES["chunked"], pads_vocabulary=1.0, chunked_loss=1.0)
    even_chunks = changed(chunked, vocab=50304.0)
    seconds, even_seconds = (
        sum(float(part[0]) for part in head_s(these_columns)) for these_columns in (chunked, even_chunks)
    )
    assert seconds == pytest.approx(even_seconds, rel=0.01), "chunks pad the table"
    assert total(columns) - total(padded) == pytest.approx(heads[0] - heads[2], rel=0.1)


def test_a_thin_product_is_bound_by_memory() -> None:
    columns = point(fsdp(), cluster="1xA100")
    seconds = float(matmul_s(columns, np.array([1.0]), np.array([8192.0]), np.array([8192.0]))[0])
    assert seconds == pytest.approx(8192 * 8192 * 2 / (2039e9 * 0.85), rel=1e-3)


def test_a_deep_product_of_few_tiles_is_cut_along_its_depth() -> None:
    """Checks the gradients of a narrow model's weights: 18 tiles for 132 units, each as deep as there are tokens."""
    columns = point(fsdp(), cluster="1xH200")
    narrow, units = np.array([768.0]), 132

    def of_sustained(depth: float) -> float:
        seconds = float(matmul_s(columns, narrow, narrow, np.array([depth]))[0])
        return 2 * 768 * 768 * depth / seconds / float(columns.matmul_flops[0])

    stretch = 131072 * 18 / units  # what one unit multiplies
    sums_s = 8 * 768 * 768 * units / 18 / (4800e9 * 0.85)  # fp32, written and read
    products_s = 2 * 768 * 768 * 131072 / float(columns.matmul_flops[0])
    assert of_sustained(131072) == pytest.approx(1 / (1 + 192 / stretch + sums_s / products_s), rel=1e-6)
    assert of_sustained(131072) > 0.9 > of_sustained(2048)
    # Where cutting costs more than it gives, nothing is cut; tiles of a quarter, at 0.8 of the rate, use more units.
    assert of_sustained(128) == pytest.approx(4 * 18 / units * 0.4 * 0.8, rel=1e-6)


def test_smaller_tiles_fill_the_last_wave() -> None:
    """Checks that a product takes the faster tiling: 128 of the largest tiles are two waves on 108 units, 512 tiles of
    a quarter of the size are five, at 0.8 of the rate.
    """
    columns = point(fsdp(), cluster="1xA100")
    seconds = float(matmul_s(columns, np.array([2048.0]), np.array([2048.0]), np.array([2048.0]))[0])
    ideal = 2 * 2048**3 / float(columns.matmul_flops[0]) * (1 + 128 / 2048)
    assert seconds / ideal == pytest.approx(5 / (512 / 108) / 0.8, rel=1e-6) and seconds / ideal < 2 / (128 / 108)


def test_metrics_of_the_trainer_read_the_logits_again() -> None:
    columns = point(fsdp(), cluster="1xA100", model=GPT2, seq_len=1024, micro_batch=16)
    plain, logged = (
        sum(float(part[0]) for part in head_s(these_columns))
        for these_columns in (columns, changed(columns, metric_losses=2.0))
    )
    assert logged - plain == pytest.approx(2 * 14 * 16 * 1024 * 50257 / (2039e9 * 0.85), rel=1e-6)


def test_ring_collectives_by_hand() -> None:
    args = (np.array([8.0]), np.array([8.0]))
    bandwidth, latency = np.array([235e9]), np.array([0.0])
    assert float(all_reduce_s(np.array([1e12]), *args, bandwidth, latency, HOP)[0]) == pytest.approx(
        2e12 * 7 / 8 / 235e9, rel=1e-4
    )
    assert float(gather_s(np.array([1e12]), *args, bandwidth, latency, HOP)[0]) == pytest.approx(
        1e12 * 7 / 8 / 235e9, rel=1e-4
    )
    assert float(all_reduce_s(np.array([1e12]), np.array([1.0]), np.array([1.0]), bandwidth, latency, HOP)[0]) == 0


def test_messages_over_many_ranks_cost_a_hop_each() -> None:
    """Checks hops, whose time does not depend on bytes: a gather goes round all ranks, an all-reduce between nodes
    follows a tree.
    """
    nothing, bandwidth, latency, single = np.array([0.0]), np.array([20e9]), np.array([0.0]), np.array([1.0])
    for times in (2, 4, 8):
        few, many = np.array([64.0]), np.array([64.0 * times])
        gathers = [float(gather_s(nothing, ranks, single, bandwidth, latency, HOP)[0]) for ranks in (few, many)]
        reduces = [float(all_reduce_s(nothing, ranks, single, bandwidth, latency, HOP)[0]) for ranks in (few, many)]
        assert gathers[1] - gathers[0] == pytest.approx((times - 1) * 64 * float(HOP))
        assert reduces[1] - reduces[0] == pytest.approx(2 * np.log2(times) * float(HOP))


def test_copies_of_gradients_and_weights_cost_their_traffic() -> None:
    """Compares the bytes for each parameter and micro-step on four devices in bf16 with sums made by hand of casts,
    copies, divisions and fp32 sums.
    """

    def traffic(layout: Layout) -> float:
        columns = point(dataclasses.replace(layout, dp_shard=4), cluster="4xH200", grad_accum=8)
        columns = changed(columns, units=1e12)  # conversions cost no more than their bytes
        columns = changed(columns, power_share=math.inf)  # under the cap traffic lets products run faster
        still = changed(columns, layer_parameters=0.0)
        moved = float((layer_seconds(columns).backward - layer_seconds(still).backward)[0])
        return moved * 4800e9 * 0.85 / float(columns.layer_parameters[0])

    assert traffic(Layout(engine="deepspeed", zero_stage=1)) == pytest.approx(2 + 4 + 12)
    assert traffic(Layout(engine="deepspeed", zero_stage=2, grad_sync="every")) == pytest.approx(2 + 4 + 8 + 12 / 4)
    assert traffic(Layout(engine="deepspeed", zero_stage=3, grad_sync="every")) == pytest.approx(
        2 + 4 + 8 + 8 + 12 / 4 + 2 * 4
    )
    gather = 4 + 6 / 4  # a copy, and the cast of a shard
    assert traffic(fsdp(grad_sync="every")) == pytest.approx(2 * gather + 2 + 4 + 12 / 4)
    assert traffic(fsdp(grad_sync="last")) == pytest.approx(2 * gather + 2 + 8)
    assert traffic(fsdp(zero_stage=2, grad_sync="every")) == pytest.approx(gather / 8 + 2 + 4 + 12 / 4)


def test_faster_links_never_cost_and_slow_ones_show() -> None:
    layout = fsdp(dp_shard=16, grad_sync="every")
    fast = point(layout, cluster="2x8xA100")
    slow = changed(fast, inter_bandwidth=1.25e9)
    assert total(slow) > 3 * total(fast)
    assert total(changed(fast, inter_bandwidth=1e15)) <= total(fast)


def test_accumulation_amortises_the_exchange_of_ddp_and_not_of_full_sharding() -> None:
    def rate(layout: Layout, grad_accum: int) -> float:
        columns = changed(point(layout, cluster="2x8xA100", grad_accum=grad_accum), inter_bandwidth=2e9)
        return grad_accum / total(columns)

    replicas = Layout(engine="ddp", dp_replicate=16)
    assert rate(replicas, 16) > 4 * rate(replicas, 1)
    sharded = fsdp(dp_shard=16, grad_sync="every")
    assert rate(sharded, 16) < 1.5 * rate(sharded, 1)


def test_heads_that_tensor_cores_cannot_multiply_cost() -> None:
    """Checks BigScience's model of width 13824, which was a third slower with 128 heads (108 each) than with 96 (144
    each).
    """
    columns = changed(point(fsdp(), cluster="8xA100", micro_batch=4), hidden=13824.0)
    columns = changed(columns, attention_width=13824.0, kv_width=13824.0)
    assert total(changed(columns, heads=128.0)) > 1.15 * total(changed(columns, heads=96.0))


def test_the_ten_rows_of_megatron_lm() -> None:
    runs = merged([interpret(row) for row in read_rows(TABLES / "megatron_ten_rows.csv")])
    scored = score_table(runs)
    report = scores(scored, range(len(runs)), 0)
    assert report.step_time_ape_median is not None and report.step_time_ape_median <= 0.04
    assert np.max(np.abs(scored.predicted_s / scored.measured_s - 1)) <= 0.08
    assert report.rank_correlation is not None and report.rank_correlation >= 0.8


def slow_data_s(layout: Layout, **recipe: object) -> float:
    """Returns the exposed data-parallel seconds of 64 devices that wait for nothing but their network."""
    columns = point(layout, cluster="8x8xA100", model=GPT_39B, **recipe)  # type: ignore[arg-type]
    return float(step_time(changed(columns, inter_bandwidth=1e8)).data_s[0])


def test_zero_3_loads_parameters_once_more_to_recompute() -> None:
    """Checks that DeepSpeed with recomputation gathers three volumes and scatters one, instead of gathering two and
    scattering one.
    """

    def data_s(engine: str, checkpointing: str) -> float:
        layout = Layout(engine=engine, zero_stage=3, dp_shard=64, grad_sync="every", checkpointing=checkpointing)  # type: ignore[arg-type]
        return slow_data_s(layout, state_precision="bf16")

    assert data_s("deepspeed", "full") / data_s("deepspeed", "none") == pytest.approx(4 / 3, rel=0.03)
    assert data_s("fsdp", "full") == pytest.approx(data_s("fsdp", "none"), rel=0.03)


def test_stage_1_all_reduces_its_sums_in_their_type() -> None:
    """Checks the bytes a parameter: the sums pass as 2 x 4 in fp32 or 2 x 2 in bf16, and 2 are gathered; until 2023, 2
    were scattered in bf16 instead of the sums.
    """
    layout = Layout(engine="deepspeed", zero_stage=1, dp_shard=64)
    fp32, bf16 = (slow_data_s(layout, state_precision=state) for state in ("fp32", "bf16"))
    assert fp32 / bf16 == pytest.approx((8 + 2) / (4 + 2), rel=0.03)
    columns = point(layout, cluster="8x8xA100", model=GPT_39B, state_precision="bf16")
    earlier = float(step_time(changed(columns, inter_bandwidth=1e8, reduces_whole=0.0)).data_s[0])
    assert fp32 / earlier == pytest.approx((8 + 2) / (2 + 2), rel=0.03)


def test_large_messages_fill_a_pipeline_first() -> None:
    """Checks the wait beyond the bytes' own time: 16 MiB wait one latency more than a few bytes, large messages two."""

    def wait_s(num_bytes: float) -> float:
        single, rate = np.ones(()), np.asarray(235e9)
        full = all_reduce_s(np.asarray(num_bytes), 8 * single, 8 * single, rate, np.asarray(45e-6), HOP)
        return float(full - 2 * num_bytes * 7 / 8 / rate)

    assert wait_s(2**24) - wait_s(1) == pytest.approx(45e-6, rel=0.01)
    assert wait_s(2**34) - wait_s(1) == pytest.approx(90e-6, rel=0.01)


def test_eager_attention_and_stepwise_gelu_cost_what_they_move() -> None:
    """Compares eager BLOOM with fused attention in compiled blocks: a sequence took 110 ms more in 30 blocks on one
    H200.
    """
    eager, fused = (
        float(layer.forward[0] + layer.backward[0])
        for attention, compiled in (("eager", "none"), ("flex", "block"))
        for layout in (Layout(engine="ddp", attention=attention, compile=compiled),)  # type: ignore[arg-type]
        for layer in (layer_seconds(point(layout, cluster="H200", state_precision="bf16")),)
    )
    assert 30 * (eager - fused) == pytest.approx(0.110, rel=0.15)


@pytest.mark.parametrize(
    ("engine", "compiled", "measured_s"),
    [("ddp", "none", 3.65e-3), ("fsdp", "none", 2.05e-3), ("ddp", "block", 0.87e-3), ("fsdp", "block", 0.82e-3)],
)
def test_eager_attention_costs_values_besides_bytes(engine: str, compiled: str, measured_s: float) -> None:
    """Checks how much more a sequence costs with eager attention than with sdpa: GPT-2 at length 1024 on one H200
    (docs/measurements).
    """

    def seconds(attention: str) -> float:
        layout = Layout(engine=engine, zero_stage=3 * (engine == "fsdp"), attention=attention, compile=compiled)  # type: ignore[arg-type]
        return 12 * float(layer_seconds(point(layout, cluster="H200", model=GPT2, seq_len=1024)).attention[0])

    assert seconds("eager") - seconds("sdpa") == pytest.approx(measured_s, rel=0.2)


def test_long_rows_of_the_softmax_are_read_in_vectors() -> None:
    """Checks rows longer than 1024, which a warp no longer holds: five values fewer for each score are moved one by
    one.
    """

    def per_score(seq_len: int) -> float:
        columns = changed(point(Layout(engine="ddp"), cluster="H200", model=GPT2, seq_len=1024), seq_len=float(seq_len))
        flash = changed(columns, flash=1.0)
        return float((layer_seconds(columns).attention - layer_seconds(flash).attention)[0]) / (12 * seq_len**2)

    assert per_score(1024) - per_score(2048) == pytest.approx(5 / (132 * UNIT_VALUES), rel=0.3)


def test_deepspeeds_own_optimizer_looks_through_fp16_gradients_once_a_step() -> None:
    """Checks that stage 0 under autocast runs the step of torch's optimizer, whereas stage 1 has its own step, which in
    fp16 adds 0.1 ms for each parameter.
    """
    plain, stage_0, stage_1 = (
        {
            precision: total(
                point(
                    layout,
                    cluster="1xH200",
                    model=GPT2,
                    seq_len=128,
                    micro_batch=32,
                    grad_accum=8,
                    compute_precision=precision,
                )
            )
            for precision in ("bf16", "fp16")
        }
        for layout in (
            Layout(engine="ddp"),
            Layout(engine="deepspeed", zero_stage=0),
            Layout(engine="deepspeed", zero_stage=1),
        )
    )
    assert stage_0 == pytest.approx(plain)
    assert stage_1["fp16"] - stage_1["bf16"] == pytest.approx(12 * 12 * GRADIENT_HOST_S, rel=1e-6)


def test_zero_3_fetches_ahead_today_and_gradients_go_over_context_parallel_ranks() -> None:
    layout = Layout(engine="deepspeed", zero_stage=3, grad_sync="every", dp_shard=16)
    today = point(layout, cluster="2x8xA100", model=GPT_39B)
    before = changed(today, hidden_gathers=PREFETCH["2021"])
    assert float(step_time(before).data_s[0]) > 1.5 * float(step_time(today).data_s[0])
    split = point(dataclasses.replace(layout, dp_shard=4, cp=4), cluster="2x8xA100", model=GPT_39B)
    assert float(split.shard[0]) == 16
    alone = dataclasses.replace(Layout(engine="ddp"), cp=16)
    assert float(step_time(point(alone, cluster="2x8xA100", model=GPT_39B)).data_s[0]) > 0


def test_llama_405b_on_the_stack_that_trained_it() -> None:
    """Compares step times of Llama 3 405B on 8,192 and 16,384 H100 with the paper's table, within 10 %. With sequences
    of 131,072 tokens over 16 context-parallel ranks the predicted step is a seventh too short.
    """
    runs = [interpret(row) for row in read_rows(TABLES / "published_bf16.csv") if row["model"] == "llama3-405b"]
    predicted = [float(step_time(from_rows([run.values])).total_s[0]) for run in runs]
    assert [run.values["cp"] for run in runs] == [1, 1, 16]
    for run, seconds, allowed in zip(runs, predicted, (0.1, 0.1, 0.2), strict=True):
        assert run.step_time_s == pytest.approx(seconds, rel=allowed)
