"""Rates of products, of attention and of kernels' starts and ends, and what autocast and recomputation move."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from platform.cost_model import stacks
from platform.cost_model.blocks import dense
from platform.cost_model.columns import Columns, from_rows
from platform.cost_model.compute import matmul_s
from platform.cost_model.hardware import find_device
from platform.cost_model.layer_time import layer_seconds
from platform.cost_model.predict import predict
from platform.cost_model.stack_columns import BLIND_SIGMA, stack_costs
from platform.validate.published_run import interpret
from tests.cost_model.points import GPT2, fsdp, point, printed_row
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import Compile, Mlp

LLM_FOUNDRY = "mosaicml_llm_foundry.csv"


def _published(**changes: str) -> Mapping[str, float]:
    """Returns a row's columns: GPT 1.7B of Megatron-LM's table, changed."""
    return interpret(printed_row(activation_ckpt="none", source="", iter_time_s="3", **changes)).values


def test_narrow_heads_wait_for_exponentials_and_short_sequences_do_not_fill_a_device() -> None:
    """Checks FlexAttention's seconds on an H100: 0.75 of the rate at width 64 (as kernels alone show, 0.70 to 0.77) and
    half at 256, where its tiles are smaller; 400 tokens more a sequence.
    """

    def rate(num_heads: int, seq_len: int = 1024, cluster: str = "1xH100", attention: str = "flex") -> float:
        model = dataclasses.replace(GPT2, num_heads=num_heads, num_kv_heads=num_heads, max_positions=8192)
        columns = point(fsdp(attention=attention), cluster=cluster, model=model, seq_len=seq_len)
        return seq_len**2 / float(layer_seconds(columns).attention[0])

    assert rate(12) / rate(6) == pytest.approx(0.75)
    assert rate(3) == pytest.approx(rate(6) / 2)
    assert rate(3, attention="sdpa") == pytest.approx(rate(6, attention="sdpa"))
    assert rate(3, cluster="1xA100") == pytest.approx(rate(6, cluster="1xA100"))
    assert rate(6, 8192) / rate(6) == pytest.approx(8192 / 8592 * 1424 / 1024)
    assert rate(12, cluster="1xB200") / rate(6, cluster="1xB200") == pytest.approx(2 / 3)
    assert rate(12, cluster="1xA100") == pytest.approx(rate(6, cluster="1xA100"))


def test_a_window_of_flex_attention_saves_keys_in_whole_blocks_and_nothing_that_a_query_costs_alone() -> None:
    def seconds(window: int, attention: str = "flex") -> float:
        model = dataclasses.replace(GPT2, max_positions=8192, window=window, window_layers=12 if window else 0)
        columns = point(fsdp(attention=attention), cluster="1xH100", model=model, seq_len=8192)
        return float(layer_seconds(columns).attention[0])

    whole, alone = seconds(0), 200
    for window in (128, 1024, 4096):
        keys = window - window**2 / (2 * 8192) + 64
        assert seconds(window) / whole == pytest.approx((keys + alone) / (4096 + alone)), window
    assert seconds(8191) == pytest.approx(whole), "a window nearly as long as the sequence is no slower"
    assert seconds(128, "sdpa") > seconds(0, "sdpa"), "sdpa computes the square behind a mask"


def test_attention_alone_on_an_h100() -> None:
    """Compares both passes with kernels alone (docs/lab/kernels.csv#flash4-h100), TFLOP/s, within 15 %."""

    def tflops(attention: str, width: int, seq_len: int) -> float:
        heads = 768 // width
        model = dataclasses.replace(GPT2, num_heads=heads, num_kv_heads=heads, max_positions=8192)
        columns = point(fsdp(attention=attention), cluster="1xH100", model=model, seq_len=seq_len)
        return 3.5 * 2 * seq_len**2 * 768 / float(layer_seconds(columns).attention[0]) / 1e12

    measured = {
        ("flex", 128, 2048): 279, ("flex", 64, 1024): 184, ("sdpa", 128, 2048): 385, ("sdpa", 64, 1024): 224,
        ("sdpa", 128, 8192): 475, ("flash4", 128, 2048): 390, ("flash4", 64, 1024): 242, ("flash4", 128, 8192): 543,
    }  # fmt: skip
    for case, rate in measured.items():
        assert tflops(*case) == pytest.approx(rate, rel=0.15), case


@pytest.mark.parametrize(("device", "half_depth"), [("1xH100", 192), ("1xH200", 192), ("1xA100", 128)])
def test_deeper_pipelines_of_tiles_fill_more_slowly(device: str, half_depth: int) -> None:
    columns = point(fsdp(), cluster=device)

    def seconds(depth: int) -> float:
        return float(matmul_s(columns, 256 * columns.units, np.array([8192.0]), np.array([float(depth)]))[0])

    assert seconds(4 * half_depth) / seconds(8 * half_depth) == pytest.approx(1.25 / (2 * 1.125))


def test_products_of_traces() -> None:
    """Compares the sustained rates of two traces' products, TFLOP/s, within 3 % (docs/lab/cost-model.csv#cost-hopper.4
    and docs/lab/cost-model.csv#cost-hopper.5).
    """

    def tflops(columns: Columns) -> float:
        tokens, h = columns.micro_batch * columns.seq_len, columns.hidden
        shapes = ((3 * h, h), (h, h), (4 * h, h), (h, 4 * h))
        seconds = sum(
            float((matmul_s(columns, tokens, *shape) + matmul_s(columns, tokens, *shape[::-1])
                   + matmul_s(columns, shape[1], shape[0], tokens))[0])
            for shape in shapes
        )  # fmt: skip
        return float(3 * 2 * 12 * (tokens * h * h)[0]) / seconds / 1e12

    bloom = point(Layout(engine="ddp", attention="flex"), cluster="1xH100", micro_batch=2)
    gpt2 = point(fsdp(), cluster="1xH200", model=GPT2, micro_batch=128, seq_len=1024)
    assert tflops(bloom) == pytest.approx(738, rel=0.03)
    assert tflops(gpt2) == pytest.approx(665, rel=0.03)


def test_kernels_take_time_to_start_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks a block's kernels, forward and backward: 57 eager ones, 33 where products compute GELU, under autocast 2.4
    times as many, 27 compiled; no more for more tokens.
    """

    def kernels(compile_: Compile, state_precision: str, micro_batch: int = 8, mlp: Mlp = "plain") -> float:
        layout = Layout(engine="ddp", attention="sdpa", compile=compile_, mlp=mlp)
        sizes = {"seq_len": 1024, "micro_batch": micro_batch, "state_precision": state_precision}
        columns = point(layout, cluster="1xH200", model=GPT2, **sizes)  # type: ignore[arg-type]

        def seconds(kernel_s: float) -> float:
            monkeypatch.setattr(dense, "KERNEL_S", kernel_s)
            layer = layer_seconds(columns)
            return float((layer.forward + layer.backward)[0])

        return seconds(1.0) - seconds(0.0)

    assert kernels("none", "bf16") == kernels("none", "bf16", 64) == pytest.approx(57)
    assert kernels("none", "bf16", mlp="quack") == pytest.approx(33)
    assert kernels("none", "fp32") == pytest.approx(2.4 * 57)
    assert kernels("block", "bf16") == pytest.approx(27)


def test_kernels_fused_by_hand_start_and_end_within_their_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = from_rows([_published()])
    seconds = float(layer_seconds(columns).forward[0])
    monkeypatch.setattr(dense, "KERNEL_S", 1.0)
    assert float(layer_seconds(columns).forward[0]) == seconds


def test_autocast_casts_gradients_back_and_adds_them_in_the_states_type() -> None:
    """Checks the bytes a parameter and micro-batch: 6 of each weight's cast and each gradient's, 12 of the sum; in the
    states' own type the sum has 6.
    """

    def moved(grad_accum: int, **recipe: str) -> float:
        columns = point(Layout(engine="ddp"), cluster="1xH200", grad_accum=grad_accum, micro_batch=1, **recipe)  # type: ignore[arg-type]
        no_weights = dataclasses.replace(columns, layer_parameters=columns.hidden * 0)
        seconds = layer_seconds(columns).backward - layer_seconds(no_weights).backward
        return float((seconds * columns.bandwidth * 0.85 / columns.layer_parameters)[0])

    assert moved(2) == pytest.approx(24) and moved(1) == pytest.approx(12)
    assert moved(2, state_precision="bf16") == pytest.approx(6) and moved(1, state_precision="bf16") == pytest.approx(0)


def test_a_compiled_blocks_backward_pass_recomputes_as_it_reads() -> None:
    def again_s(**layout: object) -> tuple[float, float]:
        columns = point(Layout(engine="ddp", checkpointing="selective", **layout), cluster="1xH200")  # type: ignore[arg-type]
        without = dataclasses.replace(columns, selective_checkpointing=columns.hidden * 0)
        full = dataclasses.replace(columns, full_checkpointing=columns.hidden * 0 + 1)
        assert float(layer_seconds(without).again[0]) == 0
        return float(layer_seconds(columns).again[0]), float(layer_seconds(full).again[0])

    selective, full = again_s(attention="flex", compile="block")
    assert 0 < selective < 0.04 * full


def test_software_of_unknown_rates_has_the_mean_of_the_known_and_their_spread() -> None:
    stated = [
        stacks.matmul_ratio(name, "Hopper") for name in ("layout-search", "megatron-core", "nanotron", "llm-foundry")
    ]
    assert all(sigma == 0 for _, sigma in stated)
    ratios = [ratio for ratio, _ in stated]
    mean, sigma = stacks.matmul_ratio("torchtitan", "Hopper")
    assert min(ratios) < mean < max(ratios) and mean**4 == pytest.approx(ratios[0] * ratios[1] * ratios[2] * ratios[3])
    assert 0.05 < sigma < 0.2
    assert stacks.matmul_ratio("torchtitan", "Ampere") == (1.0, 0.0)
    with stacks.without(LLM_FOUNDRY):
        ratio, sigma = stacks.matmul_ratio("llm-foundry", "Hopper")
        assert ratio**3 == pytest.approx(ratios[0] * ratios[1] * ratios[2]) and sigma > 0


def test_unknown_rates_widen_intervals() -> None:
    def sigma(software: str, gpu: str) -> float:
        values = _published(software=software, gpu=gpu, attention_kernel="flash2")
        return float(predict(from_rows([{**values, "stack_sigma": 0.0}])).sigma[0])

    assert sigma("torchtitan", "H100-SXM-80GB") > 1.5 * sigma("torchtitan", "A100-SXM4-80GB")


def test_a_host_that_was_never_measured_widens_intervals_where_it_sets_the_pace() -> None:
    def values(micro_batch: str) -> Mapping[str, float]:
        changes = {"micro_batch": micro_batch, "grad_accum": "1", "global_batch": "", "gpu": "H100-SXM-80GB"}
        return _published(software="nanotron", tp="1", **changes)

    def more(micro_batch: str) -> float:
        with stacks.without("nanotron_h100_3b.csv"):
            row = values(micro_batch)
            sigma = predict(from_rows([row, {**row, "host_sigma": 0.0}])).sigma
        return float(sigma[0] / sigma[1])

    assert values("1")["host_sigma"] == 0
    assert more("1") > 1.3 > 1.05 > more("32")  # beside the deviation of software without a run


@pytest.mark.parametrize(
    ("software", "table"),
    [
        ("megatron-lm", "megatron_lm.csv"),
        ("megatron-lm", "bigscience.csv"),
        ("megatron-deepspeed", "vtrain_part.csv"),
        ("megatron-core", "nvidia_dgxc_benchmarking.csv"),
        ("nemo", "nvidia_dgxc_benchmarking.csv"),
        ("nanotron", "nanotron_h100_3b.csv"),
        ("llm-foundry", LLM_FOUNDRY),
        ("torchtitan-2024", "published_bf16.csv"),
        ("torchtitan", "published_fp8.csv"),
        ("fms-fsdp", "published_bf16.csv"),
        ("aleph-alpha", "aleph_alpha_30b.csv"),
    ],
)
def test_without_its_table_a_software_has_the_deviation_of_one_without_a_run(software: str, table: str) -> None:
    assert stack_costs(software)["stack_sigma"] <= BLIND_SIGMA and table in stacks.tables_of(software)
    with stacks.without(table):
        assert stack_costs(software)["stack_sigma"] == BLIND_SIGMA


def test_of_other_stacks_numbers_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {name: dict(facts) for name, facts in stacks.table()["stacks"].items()}
    for name, value, tables in (
        ("nanotron", 1.0, ["a.csv"]),
        ("litgpt", 2.0, []),
        ("other", 4.0, []),
        ("xtuner", 9.0, []),
    ):
        named[name]["host_skew_s"] = {"value": value, "tables": tables, "source": "test"}
    del named["megatron-lm"]["host_skew_s"]
    monkeypatch.setattr(stacks, "table", lambda: {"stacks": named})
    with stacks.without("a.csv"):
        assert stacks.fact("nanotron", "host_skew_s", -1.0) == 4.0, "not the mean, 5"


def test_a_row_states_its_kernel_where_the_software_has_none_of_its_own() -> None:
    """Checks llm-foundry: Triton's FlashAttention of 2022 is its own on A100; on H100 the kernels' rates count."""

    def flash(kernel: str, gpu: str) -> tuple[float, float]:
        values = _published(software="llm-foundry", gpu=gpu, attention_kernel=kernel, strategy="fsdp")
        return values["flash"], values["flash_flops"] / find_device(gpu).flash_share

    (old, a100), (new, _) = flash("flash1", "A100-SXM4-80GB"), flash("flash2", "A100-SXM4-80GB")
    assert old == 1 and new == pytest.approx(1 / 0.75) and a100 == pytest.approx(0.75 * 312e12)
    assert [flash(kernel, "H100-SXM-80GB")[0] for kernel in ("flash1", "flash2")] == [0.6, 1.0]
