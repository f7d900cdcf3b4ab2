"""A fact that a row states is what is predicted with, whatever its software does where rows do not say."""

from collections.abc import Mapping

import pytest

from platform.cost_model import stacks
from platform.cost_model.blocks.dense import KERNEL_S, KERNELS
from platform.cost_model.columns import from_rows
from platform.cost_model.predict import predict
from platform.cost_model.stack_columns import TENSOR_OVERLAP
from platform.validate.cells import Row
from platform.validate.facts import normalized
from platform.validate.published_run import PublishedRun, interpret
from tests.validate.test_readings import NEMO

SOFTWARE = [name for name in stacks.names() if name != "layout-search"]
BASE: Row = {
    **NEMO, "pp": "1", "vp": "1", "tp": "2", "dp": "32", "global_batch": "256", "schedule": "1f1b",
    "dp_overlap": "yes", "seq_parallel": "yes", "node_gbps": "3200", "vocab": "50257", "seq_len": "2048",
}  # fmt: skip
PIPED = {"pp": "2", "dp": "16", "grad_accum": "16", "schedule": ""}
CUT = {"tp": "1", "cp": "2", "dp": "32"}
FP8 = {"precision": "fp8"}
STATED: tuple[tuple[str, Mapping[str, Mapping[str, float]], Mapping[str, str]], ...] = (
    ("activation_ckpt", {
        "none": {"full_checkpointing": 0, "selective_checkpointing": 0},
        "selective": {"full_checkpointing": 0, "selective_checkpointing": 1},
        "full": {"full_checkpointing": 1, "selective_checkpointing": 0},
    }, {}),
    ("seq_parallel", {"yes": {"sequence_parallel": 1}, "no": {"sequence_parallel": 0}}, {}),
    ("vp", {"1": {"virtual": 1}, "3": {"virtual": 3}}, PIPED),
    ("schedule", {"1f1b": {"virtual": 1}}, {**PIPED, "vp": ""}),
    ("dp_overlap", {
        "yes": {"stated_overlap": 1, "overlaps_reduction": 1, "overlaps_gather": 1},
        "no": {"stated_overlap": -1, "overlaps_reduction": 0, "overlaps_gather": 0},
    }, {}),
    ("tp_overlap", {"yes": {"tensor_overlap": TENSOR_OVERLAP}, "no": {"tensor_overlap": 0}}, {}),
    ("cp_comm", {"ring": {"exchanges_heads": 0}, "all_to_all": {"exchanges_heads": 1}}, CUT),
    ("precision", {word: {"compute_bytes": size} for word, size in (("bf16", 2), ("fp16", 2), ("fp32", 4))}, {}),
    ("precision", {"fp8": {"cast_bytes": 5}, "bf16": {"cast_bytes": 0}}, {}),
    ("optimizer", {"AdamW": {"moments": 2}, "adafactor": {"moments": 0}, "Muon": {"moments": 1}}, {}),
    ("state_precision", {"bf16": {"state_bytes": 2}, "fp32": {"state_bytes": 4}}, {}),
    ("gradient_precision", {"bf16": {"gradient_bytes": 2}, "fp32": {"gradient_bytes": 4}}, {}),
    ("compile", {"none": {"compiled_calls": 0}, "block": {"compiled_calls": 1}, "model": {"compiled_calls": 1 / 24}},
     {}),
    ("strategy", {
        **{word: {"zero_stage": stage, "shard": 32} for word, stage in (("zero1", 1), ("zero2", 2), ("fsdp", 3))},
        "ddp": {"zero_stage": 0, "shard": 1}, "hsdp": {"zero_stage": 3, "shard": 8},
    }, {}),
    ("zero_group", {"4": {"shard": 4}, "16": {"shard": 16}}, {}),
    ("regathers", {"yes": {"zero_stage": 3}}, {**PIPED, "strategy": "fsdp", "schedule": "1f1b"}),
    ("grad_sync", {"every": {"sync_every": 1}, "last": {"sync_every": 0}}, {"strategy": "fsdp"}),
    ("offload", {
        "none": {"states_on_host": 0, "parameters_on_host": 0}, "optimizer": {"states_on_host": 1},
        "all": {"parameters_on_host": 1},
    }, {}),
    ("padded_vocab", {"50304": {"vocab": 50304}, "51200": {"vocab": 51200}}, {}),
    ("fused", {"norm;rope;mlp": {"unfused_norm_passes": 0, "rotary": 0, "fused": 1}}, {"compile": "none"}),
    ("checkpoint_blocks", {"4": {"checkpoint_blocks": 4}}, {"activation_ckpt": "full"}),
    ("checkpoint_inputs", {"host": {"checkpoint_device_share": 0}, "split": {"checkpoint_device_share": 0.5}},
     {"activation_ckpt": "full"}),
    ("launch_blocking", {"yes": {"blocking": 1}, "no": {"blocking": 0}}, {}),
    ("flash_attention", {"no": {"flash": 0}}, {"attention_kernel": ""}),
    ("attention_kernel", {"eager": {"flash": 0}, "fused_softmax": {"flash": 0}}, {"flash_attention": ""}),
)  # fmt: skip
"""(column, the values of `Columns` that each of its words must give, other cells of the row)."""


def run_of(software: str, **changes: str) -> PublishedRun:
    """Returns the run of `BASE` with these changes, as of that software."""
    return interpret(normalized({**BASE, "software": software, **changes}))


@pytest.mark.parametrize(("column", "words", "others"), STATED, ids=[column for column, *_ in STATED])
def test_a_stated_fact_is_used_whatever_the_software(
    column: str, words: Mapping[str, Mapping[str, float]], others: Mapping[str, str]
) -> None:
    wrong = [
        (software, word, name, values[name])
        for software in SOFTWARE
        for word, expected in words.items()
        for values in [run_of(software, **{**others, column: word}).values]
        for name, value in expected.items()
        if values[name] != pytest.approx(value)
    ]
    assert not wrong


def test_a_stated_kernel_has_its_own_rate_whatever_the_software() -> None:
    for kernel, rate in (("flash1", 0.6), ("flash2", 1.0), ("sdpa", 1.0), ("flash3", 1.38), ("te", 1.38)):
        rates = {software: run_of(software, attention_kernel=kernel).values for software in SOFTWARE}
        usual = run_of("other", attention_kernel="flash2").values["flash_flops"]
        of_kernel = {name: values["flash_flops"] * values["flash"] / usual for name, values in rates.items()}
        assert of_kernel == pytest.approx(dict.fromkeys(SOFTWARE, rate)), kernel


def test_a_stated_scaling_of_fp8_has_its_own_rate_whatever_the_software() -> None:
    for software in SOFTWARE:
        by = {word: run_of(software, **FP8, float8_scaling=word).values for word in ("tensorwise", "rowwise")}
        assert by["rowwise"]["matmul_flops"] == pytest.approx(0.8 * by["tensorwise"]["matmul_flops"]), software


def test_a_stated_network_and_link_are_used_whatever_the_software() -> None:
    for software in SOFTWARE:
        figures = (("3200", "450"), ("400", "45"))
        fast, slow = (run_of(software, node_gbps=gbps, link_gbs=gbs).values for gbps, gbs in figures)
        assert slow["inter_bandwidth"] == pytest.approx(fast["inter_bandwidth"] / 8)
        assert slow["intra_bandwidth"] == pytest.approx(fast["intra_bandwidth"] / 10)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "fsdp"])
def test_an_exchange_that_is_stated_to_show_shows_whatever_the_software(strategy: str) -> None:
    for software in SOFTWARE:
        runs = [run_of(software, strategy=strategy, dp_overlap=word) for word in ("yes", "no")]
        hidden, shown = predict(from_rows([run.values for run in runs])).step.data_s.tolist()
        # DeepSpeed reduces fp32 sums of stage 1 beside bf16, and all of stage 0, after the backward pass.
        may_not = runs[0].layout["engine"] == "deepspeed" and strategy in ("ddp", "zero1")
        assert hidden <= shown if may_not else hidden < 0.9 * shown, software


@pytest.mark.parametrize(
    ("software", "year", "stack"),
    [
        ("torchtitan", "2024", "torchtitan-2024"),
        ("torchtitan", "2025", "torchtitan-2025"),
        ("torchtitan", "2026", "torchtitan"),
        ("megatron-core", "2024", "megatron-core-2024"),
        ("megatron-core", "2025", "megatron-core"),
    ],
)
def test_a_stated_year_finds_the_software_of_that_year(software: str, year: str, stack: str) -> None:
    assert normalized({**BASE, "software": software, "year": year})["software"] == stack


def test_a_stated_fact_has_no_readings() -> None:
    for software in SOFTWARE:
        cells = {"flash_attention": "yes", "cp_comm": "ring", "float8_scaling": "tensorwise"}
        assert not run_of(software, **cells).readings, software


@pytest.mark.parametrize("scope", ["block", "model"])
def test_compiled_code_has_a_floor_of_its_kernels(scope: str) -> None:
    for software in SOFTWARE:
        small = {"tp": "1", "dp": "64", "seq_len": "128", "grad_accum": "1", "global_batch": "64", "compile": scope}
        values = run_of(software, **small).values
        step = predict(from_rows([values])).step
        starts_s = values["layers"] * 3 * KERNELS["compiled"] * KERNEL_S
        assert step.compute_s[0] + step.host_s[0] > starts_s, software
