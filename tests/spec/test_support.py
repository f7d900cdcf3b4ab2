"""Refusals: each thing an engine cannot do has its sentence, and what the contract runs is not refused."""

import dataclasses
import sys
from typing import Any

import pytest

from tests.contract import cases
from tests.spec.support_cases import (
    BLOOM,
    CPUS,
    DDP,
    EVEN_MOE,
    FLOAT8,
    GPT2,
    GPUS,
    GRAPHS,
    GROUPED_BLOCKS,
    LAYOUT,
    MOE,
    OLD,
    OSS,
    RECIPE,
    SHARED_OUT,
    ZERO_1,
)
from trainers.spec.cluster import Cluster
from trainers.spec.host_moments import HOST_SHARE, moments_gib, node_gib_needed
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.placement import reaches_across_nodes
from trainers.spec.support import refusal


def _host(share_gib: float) -> Cluster:
    return dataclasses.replace(GPUS, host_share_gib=share_gib)


def test_a_node_needs_room_for_the_largest_moments_of_its_devices() -> None:
    away = dataclasses.replace(LAYOUT, offload="moments")
    assert node_gib_needed([(RECIPE, LAYOUT)], 8) == 0.0
    needed_gib = node_gib_needed([(RECIPE, LAYOUT), (RECIPE, away)], 8)
    assert needed_gib == pytest.approx(8 * moments_gib(RECIPE, away) / HOST_SHARE)
    assert refusal(RECIPE, away, _host(needed_gib / 8 * 1.001)) is None
    assert "do not fit in host memory" in (refusal(RECIPE, away, _host(needed_gib / 8 * 0.99)) or "")


def test_what_runs_is_not_refused() -> None:
    assert refusal(RECIPE, LAYOUT, GPUS) is None
    assert refusal(RECIPE, LAYOUT, CPUS) is None
    for precision in ("fp32", "tf32", "fp16"):
        assert refusal(dataclasses.replace(RECIPE, compute_precision=precision), LAYOUT, GPUS) is None


@pytest.mark.parametrize(("tp", "per_node", "across"), [(2, 2, False), (4, 2, True), (4, 6, True), (3, 6, False)])
def test_tensor_parallelism_across_nodes_is_told_and_runs(tp: int, per_node: int, across: bool) -> None:
    nodes = dataclasses.replace(GPUS, num_nodes=2, devices_per_node=per_node)
    on = dataclasses.replace(LAYOUT, tp=tp, dp_shard=2 * per_node // tp)
    assert "nodes" not in (refusal(RECIPE, on, nodes) or "")
    assert bool(reaches_across_nodes(on, per_node)) == across


def test_a_context_parallel_group_may_span_nodes() -> None:
    nodes = dataclasses.replace(GPUS, num_nodes=2)
    spanning = dataclasses.replace(LAYOUT, engine="fsdp", zero_stage=3, cp=4, dp_shard=1, attention="sdpa")
    assert refusal(RECIPE, spanning, nodes) is None


@pytest.mark.parametrize("precision", ["fp8_tensorwise", "fp8_rowwise"])
@pytest.mark.parametrize(
    "layout",
    [
        LAYOUT,
        dataclasses.replace(LAYOUT, compile="block"),
        Layout(engine="ddp", dp_replicate=2),
        Layout(engine="fsdp", zero_stage=2, pp=2),
    ],
)
def test_fp8_is_accepted_where_the_contract_holds_it(precision: Any, layout: Layout) -> None:
    recipe = dataclasses.replace(FLOAT8, compute_precision=precision)
    assert refusal(recipe, layout, GPUS) is None and refusal(recipe, layout, CPUS) is None
    assert refusal(dataclasses.replace(recipe, state_precision="bf16"), layout, GPUS) is None


@pytest.mark.parametrize(
    ("recipe", "layout", "cluster", "sentence"),
    [
        ({}, {}, OLD, "fp8_tensorwise needs CUDA compute capability 8.9, that of Tesla V100 is 7.0: choose bf16"),
        ({}, {}, dataclasses.replace(GPUS, device="NVIDIA A100", capability=(8, 0)), "that of NVIDIA A100 is 8.0"),
        ({}, ZERO_1, GPUS, "DeepSpeed casts weights to bf16 by itself, from where FP8 would round them a second time"),
        ({}, {"tp": 2, "dp_shard": 1}, GPUS, "scale its part of a tensor by that part's largest value"),
        ({}, {"offload": "all"}, GPUS, "FP8 weights in host memory were not compared with the dense model"),
        ({"model": GPT2}, {}, GPUS, "the blocks of gpt2 are transformers' Conv1D"),
        ({"model": dataclasses.replace(BLOOM, hidden_size=40)}, {}, GPUS, "hidden_size of bloom is 40"),
        ({"seq_len": 40}, {}, GPUS, "got seq_len 40 and cp 1"),
        ({"seq_len": 16}, {"cp": 2, "dp_shard": 1}, GPUS, "got seq_len 16 and cp 2"),
        ({}, {"dp_shard": 4, "reshard": 2}, dataclasses.replace(GPUS, devices_per_node=4), "set reshard to 0"),
        ({}, {"dp_shard": 3}, dataclasses.replace(GPUS, devices_per_node=3), "cut evenly over its 3 shards"),
    ],
)
def test_where_fp8_is_not_exact_or_does_not_run_it_is_refused_with_the_reason(
    recipe: dict[str, Any], layout: dict[str, Any], cluster: Cluster, sentence: str
) -> None:
    reason = refusal(dataclasses.replace(FLOAT8, **recipe), dataclasses.replace(LAYOUT, **layout), cluster)
    assert sentence in (reason or "")


@pytest.mark.parametrize("layout", (LAYOUT, Layout(engine="ddp", dp_replicate=2)), ids=lambda layout: layout.label)
def test_moments_in_host_memory_go_with_fp8_and_bf16_states(layout: Layout) -> None:
    away = dataclasses.replace(layout, offload="moments")
    for recipe in (FLOAT8, dataclasses.replace(FLOAT8, state_precision="bf16")):
        assert refusal(recipe, away, GPUS) is None


@pytest.mark.parametrize(
    ("recipe", "layout", "shards"),
    [
        ({}, {}, 2),
        ({"state_precision": "bf16"}, {}, 2 * 2),
        ({}, DDP, 1),
        ({"state_precision": "bf16"}, DDP, 2),
    ],
)
def test_moments_that_host_memory_does_not_hold_are_refused(
    recipe: dict[str, Any], layout: dict[str, Any], shards: int
) -> None:
    """Checks the two sides of the limit: two moments of each parameter, in the states' type, in 80 % of a share."""
    chosen = dataclasses.replace(RECIPE, **recipe)
    away = dataclasses.replace(LAYOUT, **layout, offload="moments")
    needed_gib = 8 * chosen.model.num_parameters / shards / 2**30
    assert refusal(chosen, away, _host(1.01 * needed_gib / 0.8)) is None
    assert "do not fit in host memory" in (refusal(chosen, away, _host(0.99 * needed_gib / 0.8)) or "")
    assert refusal(chosen, away, GPUS) is None  # unknown
    assert refusal(chosen, dataclasses.replace(away, offload="none"), _host(0)) is None


@pytest.mark.parametrize("model", (GPT2, BLOOM, MOE), ids=lambda model: model.name)
def test_the_pipeline_rank_with_most_moments_decides(model: ModelSpec) -> None:
    """Checks that the first stage of two counts what is embedded, unless a head of its own is larger."""
    recipe = dataclasses.replace(RECIPE, model=model)
    table = model.vocab_size * model.hidden_size
    first = model.embedding_parameters - (0 if model.tied_embeddings else table)
    most = max(first, table) + model.parameters_per_layer
    layout = Layout(engine="ddp", pp=2, offload="moments")
    assert moments_gib(recipe, layout) == pytest.approx(8 * most / 2**30)
    assert moments_gib(recipe, dataclasses.replace(layout, tp=2)) == pytest.approx(4 * most / 2**30)


def test_without_torchao_fp8_is_refused_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    assert "fp8_tensorwise needs torchao, which is not installed" in (refusal(FLOAT8, LAYOUT, GPUS) or "")
    assert refusal(dataclasses.replace(FLOAT8, compute_precision="bf16"), LAYOUT, GPUS) is None


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_nothing_that_the_contract_runs_is_refused(monkeypatch: pytest.MonkeyPatch, world_size: int) -> None:
    monkeypatch.setattr("trainers.spec.optional_kernels.OptionalKernel.is_installed", True)
    cluster = dataclasses.replace(CPUS, devices_per_node=world_size)
    gpus = dataclasses.replace(GPUS, devices_per_node=world_size)
    refusals: set[str | None] = set()
    for case in cases.cases(world_size):
        layout = case.layout
        is_for_gpus = layout.offload != "none" or layout.mlp == "quack" or layout.cuda_graphs == "on"
        refusals.add(refusal(case.recipe, case.layout, gpus if is_for_gpus else cluster))
    assert refusals == {None}


@pytest.mark.parametrize(
    ("recipe", "layout", "cluster", "sentence"),
    [
        ({}, {"dp_shard": 4}, GPUS, "multiply to 4 devices, the cluster has 2"),
        ({}, {}, OLD, "bf16 needs CUDA compute capability 8.0, that of Tesla V100 is 7.0"),
        ({"compute_precision": "tf32"}, {}, OLD, "tf32 needs CUDA compute capability 8.0"),
        ({"compute_precision": "fp16"}, {}, CPUS, "no fp16 on a CPU"),
        ({"compute_precision": "tf32"}, {}, CPUS, "TF32 is a mode of CUDA devices"),
        ({"optimizer": "adafactor"}, {}, GPUS, "Adafactor mixes plain tensors with FSDP2's sharded ones"),
        (
            {"optimizer": "adafactor"},
            {"engine": "deepspeed", "zero_stage": 1},
            GPUS,
            "DeepSpeed ZeRO-1 cuts weights into flat shards",
        ),
        (
            {"optimizer": "adafactor"},
            {"engine": "deepspeed", "grad_sync": "every"},
            GPUS,
            "DeepSpeed ZeRO-3 cuts weights into flat shards",
        ),
        ({"state_precision": "bf16", "compute_precision": "fp32"}, {}, GPUS, "bf16 states go with bf16 products"),
        (
            {"state_precision": "bf16", "optimizer": "adafactor"},
            {"engine": "ddp", "zero_stage": 0, "dp_shard": 1, "dp_replicate": 2},
            GPUS,
            "Adafactor keeps its states in fp32",
        ),
        (
            {"state_precision": "bf16"},
            {"engine": "deepspeed", "zero_stage": 0, "dp_shard": 1, "dp_replicate": 2},
            GPUS,
            "DeepSpeed stage 0 in bf16 always keeps fp32 master weights",
        ),
        (
            {"compression": "powersgd_4"},
            {},
            GPUS,
            "only DDP compresses gradients, got compression powersgd_4 with fsdp",
        ),
        ({"compression": "bf16", "state_precision": "bf16"}, DDP, GPUS, "bf16 states exchange bf16 gradients already"),
        ({"compression": "powersgd_4", "compute_precision": "fp16"}, DDP, GPUS, "stay in PowerSGD's error feedback"),
        ({"compression": "powersgd_4"}, {**DDP, "grad_sync": "every"}, GPUS, "choose grad_sync last"),
        ({}, {"dp_shard": 1, "tp": 2}, GPUS, "tp 2 does not divide the 97 words in the vocabulary of gpt2"),
        ({}, {**ZERO_1, "dp_shard": 1, "pp": 2}, GPUS, "engines ddp and fsdp have it, got pp 2: set it to 1"),
        ({}, {**ZERO_1, "dp_shard": 1, "cp": 2}, GPUS, "engines ddp and fsdp have it, got cp 2: set it to 1"),
        ({}, {"offload": "all"}, CPUS, "moves states to host memory, where a CPU's are already"),
        ({}, {**DDP, "offload": "optimizer"}, GPUS, "DDP keeps everything on the device, got offload optimizer"),
        ({}, {**DDP, "engine": "deepspeed", "offload": "all"}, GPUS, "DeepSpeed stage 0 keeps everything"),
        ({}, {"offload": "moments"}, CPUS, "moves states to host memory, where a CPU's are already"),
        ({}, {**ZERO_1, "offload": "moments"}, GPUS, "DeepSpeed passes no moments in host memory"),
        ({"compute_precision": "fp16"}, {"offload": "moments"}, GPUS, "an fp16 step may be skipped"),
        ({"optimizer": "adafactor"}, {**DDP, "offload": "moments"}, GPUS, "adafactor has no moments to hold"),
        ({}, {"offload": "moments"}, _host(1e-6), "whose share for a GPU is 0.0 GiB, 80% of it usable"),
        ({}, {"offload": "optimizer"}, GPUS, "FSDP2 offloads weights and gradients along with the states"),
        ({"compute_precision": "fp16"}, {"offload": "all"}, GPUS, "an fp16 loss scale is kept on the device"),
        ({}, {**ZERO_1, "zero_stage": 2, "grad_sync": "every", "offload": "all"}, GPUS, "at stage 3 alone"),
        (
            {"state_precision": "bf16"},
            {**ZERO_1, "offload": "optimizer"},
            GPUS,
            "offloaded states in bf16 with its own compiled CPU Adam alone",
        ),
        ({}, {"reshard": 2}, GPUS, "reshard must divide dp_shard and be less, got reshard 2 with dp_shard 2"),
        ({}, {"reshard": 3}, GPUS, "got reshard 3 with dp_shard 2: choose another, or 0"),
        ({}, {"prefetch": 2}, GPUS, "prefetch 2 reaches beyond the 2 blocks of gpt2"),
        ({}, {"dp_shard": 1, "pp": 2, "prefetch": 1}, GPUS, "beyond the 1 blocks of a stage of gpt2 at pp 2"),
        ({}, {**ZERO_1, "overlap": "on"}, GPUS, "reduces all gradients after the backward pass, got overlap on"),
        (
            {},
            {"engine": "deepspeed", "grad_sync": "every", "compile": "block"},
            GPUS,
            "ZeRO-3 gathers each module's parameters by hooks that cannot be compiled, got compile block",
        ),
        (
            {},
            {"engine": "deepspeed", "grad_sync": "every", "checkpointing": "selective"},
            GPUS,
            "ZeRO-3 gathers other parameters when a block is recomputed than at first",
        ),
        ({}, {"experts": "grouped"}, GPUS, "grouped needs a model with experts, gpt2 has none: choose experts loop"),
        ({"model": MOE}, {"compile": "block"}, GPUS, "experts loop reads each expert's token count on the host"),
        ({"model": MOE, "compute_precision": "fp32"}, GROUPED_BLOCKS, GPUS, "compiles grouped products in bf16 alone"),
        (
            {"model": dataclasses.replace(MOE, ffn_size=20)},
            {"experts": "grouped"},
            GPUS,
            "multiples of 8, hidden_size of moe is 32 and the width of an expert 20: choose experts loop",
        ),
        ({"model": MOE}, {**DDP, "experts": "grouped", "compile": "model"}, GPUS, "experts were tried with compiled"),
        ({"model": MOE}, {**GRAPHS, "experts": "grouped"}, GPUS, "CUDA graphs were not tried with experts: choose"),
        ({"model": MOE, "compression": "powersgd_4"}, DDP, GPUS, "the gradients of all experts of a block as one"),
        ({"model": MOE, "routing": "balanced"}, {"dp_shard": 1, "cp": 2}, GPUS, "by a token's place in its sequence"),
        ({"model": OSS}, {"attention": "sdpa"}, GPUS, "sdpa does not return the softmax's sum, which attention sinks"),
        (
            {"model": MOE, "balance_loss": "aux"},
            {"dp_shard": 1, "pp": 2},
            GPUS,
            "begins before its last micro-batch has chosen experts, which the balance loss counts, got pp 2: choose",
        ),
        (
            {"model": MOE, "balance_loss": "bias", "compute_precision": "fp16"},
            {"dp_shard": 2},
            GPUS,
            "steps that fp16's loss scale leaves out, got balance_loss bias and compute_precision fp16: choose bf16",
        ),
        (
            {"model": MOE, "balance_loss": "bias", "adapter": "lora_8", "lora_targets": "q_proj"},
            {"dp_shard": 2},
            GPUS,
            "balance_loss bias would change the frozen model, got adapter lora_8 and balance_loss bias: choose",
        ),
        (
            {"model": MOE, "balance_loss": "bias"},
            {"engine": "deepspeed", "zero_stage": 2, "grad_sync": "every"},
            GPUS,
            "DeepSpeed does not count a step's tokens by expert, got balance_loss bias: choose engine ddp or fsdp",
        ),
        ({}, {"ep": 2}, GPUS, "ep 2 needs a model with experts, gpt2 has none: choose ep 1"),
        (
            {"model": dataclasses.replace(MOE, ffn_size=20)},
            SHARED_OUT | {"experts": "loop", "compile": "block"},
            GPUS,
            "hidden_size of moe is 32 and the width of an expert 20, got ep 2: set it to 1",
        ),
        ({"model": MOE}, SHARED_OUT | {"experts": "loop"}, GPUS, "got ep 2 and experts loop: choose experts grouped"),
        (
            {"model": MOE},
            SHARED_OUT | {"compile": "block", "checkpointing": "selective"},
            GPUS,
            "got ep 2, compile block and checkpointing selective: choose none or full",
        ),
        (
            {"model": dataclasses.replace(MOE, num_experts=5)},
            SHARED_OUT,
            GPUS,
            "ep 2 does not divide the 5 experts of a block of moe: choose a",
        ),
        (
            {"model": dataclasses.replace(MOE, architecture="qwen2_moe", shared_ffn_size=32)},
            SHARED_OUT | {"checkpointing": "selective"},
            GPUS,
            "a shared expert beside experts that ranks share out, got ep 2: choose checkpoint",
        ),
        (
            {"model": MOE},
            SHARED_OUT | {"ep": 4},
            GPUS,
            "ep 4 does not divide the ranks that share one copy of the model, 2 here",
        ),
        ({"model": MOE}, {**DDP, "experts": "grouped", "ep": 2}, GPUS, "engine fsdp has it, got ep 2: set it to 1"),
        ({"model": MOE}, SHARED_OUT | {"reshard": 2}, GPUS, "reshard must divide dp_shard and be less"),
        (
            {"model": EVEN_MOE},
            {"dp_shard": 1, "tp": 2},
            GPUS,
            "cuts linear layers, and experts are none",
        ),
        ({"model": MOE, "compute_precision": "fp8_rowwise"}, {}, GPUS, "FP8 is for linear layers, and experts are"),
        ({"model": MOE}, {"engine": "deepspeed", "grad_sync": "every"}, GPUS, "got experts loop: choose grouped, zero"),
        ({}, {"compile": "model"}, GPUS, "FSDP2 gathers each block's parameters between blocks"),
        (
            {},
            {"engine": "ddp", "zero_stage": 0, "dp_shard": 1, "dp_replicate": 2, "compile": "model", "loss": "chunked"},
            GPUS,
            "a model compiled whole has sdpa or eager attention and the plain loss, got sdpa and chunked",
        ),
        (
            {},
            GRAPHS,
            CPUS,
            "CUDA graphs are launched on CUDA devices, the cluster has CPUs: choose cuda_graphs off",
        ),
        ({}, {**GRAPHS, "dp_replicate": 1, "cp": 2}, GPUS, "were not tried with cp 2: choose cuda_graphs off"),
        ({}, {**GRAPHS, "attention": "eager"}, GPUS, "eager attention copies its mask from the host"),
        ({"compression": "bf16"}, GRAPHS, GPUS, "were not tried with bf16 compression: choose cuda_graphs off"),
        ({"trained_tokens": "marked"}, GRAPHS, GPUS, "were not tried with a loss of marked tokens: choose cuda_graphs"),
        (
            {"compute_precision": "fp16", "attention_mask": "document"},
            {**GRAPHS, "attention": "flex"},
            GPUS,
            "were not tried with a document mask or fp16 compute",
        ),
        ({}, {"checkpointing": "budget_50"}, GPUS, "an activation budget needs compiled code, got compile none"),
        ({}, {"checkpointing": "every_4"}, GPUS, "every_4 of 2 blocks equals a smaller distance: choose every_2"),
        ({}, {"checkpointing": "selective", "attention": "flex"}, GPUS, "cannot look into FlexAttention"),
        ({}, {"bucket_mib": 50}, GPUS, "FSDP2 reduces a block at a time"),
        (
            {},
            {"engine": "deepspeed", "zero_stage": 0, "dp_shard": 1, "dp_replicate": 2, "bucket_mib": 50},
            GPUS,
            "DeepSpeed stage 0 has buckets of one fixed size",
        ),
        (
            {"model": dataclasses.replace(GPT2, architecture="llama", embedding_norm=True)},
            {},
            GPUS,
            "no llama with a norm after the embedding, gpt2 asks for one: use bloom or gpt2",
        ),
        ({"model": dataclasses.replace(GPT2, num_kv_heads=2)}, {}, GPUS, "2 of 4: use apertus or arcee"),
        (
            {"model": dataclasses.replace(BLOOM, ffn_size=64)},
            {"attention": "eager"},
            GPUS,
            "ffn_size 4 x hidden_size, 128 for bloom, got 64",
        ),
    ],
)
def test_a_refusal_says_why(recipe: dict[str, Any], layout: dict[str, Any], cluster: Cluster, sentence: str) -> None:
    reason = refusal(dataclasses.replace(RECIPE, **recipe), dataclasses.replace(LAYOUT, **layout), cluster)
    assert reason is not None
    assert sentence in reason
