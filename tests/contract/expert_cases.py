"""Layouts of two and four ranks with expert parallelism, and faults that must be detected."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from tests.contract.cases import recipe
from tests.contract.expert_faults import FAULTS
from tests.contract.family_cases import FAMILIES
from tests.contract.mesh_cases import MeshCase
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import BalanceLoss

_SHARED: Mapping[str, Any] = {"engine": "fsdp", "zero_stage": 3, "attention": "sdpa", "experts": "grouped", "ep": 2}
_ROWS: Mapping[int, tuple[tuple[str, dict[str, Any]], ...]] = {
    2: (
        ("mixtral", {"dp_shard": 2}),
        ("qwen3_moe", {"dp_shard": 2, "zero_stage": 2, "checkpointing": "selective", "loss": "chunked"}),
        ("olmoe", {"cp": 2, "checkpointing": "full"}),
        ("qwen3_moe", {"dp_shard": 2, "compile": "block", "loss": "chunked"}),
        ("mixtral", {"dp_shard": 2, "compile": "block", "checkpointing": "full", "zero_stage": 2}),
        ("olmoe", {"cp": 2, "compile": "block", "checkpointing": "full"}),
        ("gpt_oss", {"dp_shard": 2, "attention": "flex", "compile": "block", "checkpointing": "full"}),
    ),
    4: (
        ("qwen3_moe", {"dp_shard": 4, "checkpointing": "full", "prefetch": 1}),
        ("mixtral", {"dp_shard": 4, "ep": 4, "grad_sync": "every", "offload": "moments"}),
        ("olmoe", {"dp_shard": 4, "ep": 4, "checkpointing": "selective", "loss": "chunked"}),
        ("olmoe", {"dp_shard": 4, "zero_stage": 2, "checkpointing": "every_2"}),
        ("mixtral", {"dp_shard": 2, "dp_replicate": 2, "grad_sync": "every"}),
        ("qwen3_moe", {"dp_shard": 2, "cp": 2, "attention": "flex"}),
        ("qwen3_moe", {"dp_shard": 2, "cp": 2, "ep": 4, "checkpointing": "full"}),
        ("mixtral", {"dp_shard": 2, "pp": 2, "loss": "chunked"}),
        ("olmoe", {"dp_shard": 2, "pp": 2, "schedule": "interleaved", "virtual": 2, "checkpointing": "full"}),
        ("mixtral", {"dp_shard": 4, "offload": "all"}),
        ("gpt_oss", {"dp_shard": 2, "cp": 2, "ep": 4, "attention": "flex", "checkpointing": "selective"}),
        ("gpt_oss", {"dp_shard": 2, "pp": 2, "attention": "eager", "loss": "chunked"}),
    ),
}
_DDP: Mapping[str, Any] = {"engine": "ddp", "zero_stage": 0, "ep": 1}
_BALANCED: Mapping[int, tuple[tuple[str, BalanceLoss, dict[str, Any]], ...]] = {
    2: (
        ("mixtral", "aux", {"dp_shard": 2, "compile": "block"}),
        ("olmoe", "aux", {"dp_shard": 2, "compile": "block", "checkpointing": "full", "micro_steps": 1}),
        ("qwen3_moe", "bias", {"dp_shard": 2, "compile": "block", "checkpointing": "full"}),
    ),
    4: (
        ("qwen3_moe", "aux", {"dp_shard": 4, "checkpointing": "full", "grad_sync": "every"}),
        ("mixtral", "aux", {**_DDP, "dp_replicate": 4, "checkpointing": "every_2"}),
        ("qwen3_moe", "aux", {**_DDP, "dp_replicate": 4, "micro_steps": 1}),
        ("olmoe", "aux", {"dp_shard": 2, "cp": 2, "ep": 4, "checkpointing": "selective"}),
        ("qwen3_moe", "bias", {"dp_shard": 2, "pp": 2, "loss": "chunked"}),
        ("gpt_oss", "bias", {**_DDP, "dp_replicate": 4, "attention": "eager", "experts": "loop"}),
        ("olmoe", "bias", {"dp_shard": 2, "cp": 2, "checkpointing": "selective"}),
    ),
}
"""Recipes with a balance loss that must not depend on micro-batches, accumulation and ranks."""
_OF_BALANCE: Mapping[str, BalanceLoss] = {
    "tokens of one rank balanced": "aux",
    "balance loss of another scale": "aux",
    "biases not moved": "bias",
}
"""Faults of a balance loss, with its kind."""
_OTHERS = ("dp_replicate", "cp", "pp")
_OF_ROUTERS = ("router without a gradient", "experts of the next token")
"""Faults of one rank's experts that must also be detected with expert parallelism."""


def _case(
    name: str,
    layout: dict[str, Any],
    fault: str = "",
    precision: str = "fp32",
    balance_loss: BalanceLoss = "none",
) -> MeshCase:
    layout = {**layout}
    micro_steps = layout.pop("micro_steps", 2)
    half, _, states = precision.partition(" ")
    chosen: Recipe = recipe(FAMILIES[name], half, states="bf16" if states else "fp32")
    if balance_loss != "none":  # so much that the second step's loss and the first one's gradients tell it
        chosen = dataclasses.replace(chosen, balance_loss=balance_loss, balance_rate=0.1)
    if layout.get("virtual", 1) > 1:  # a block or two for each stage
        chosen = dataclasses.replace(chosen, model=dataclasses.replace(chosen.model, num_layers=4))
    return MeshCase(recipe=chosen, layout=Layout(**{**_SHARED, **layout}), fault=fault, micro_steps=micro_steps)


def cases(world_size: int) -> list[MeshCase]:
    """Returns the cases of `world_size` ranks, including those with faults."""
    chosen = [_case(*row) for row in _ROWS[world_size]]
    chosen += [_case(name, layout, balance_loss=kind) for name, kind, layout in _BALANCED[world_size]]
    if world_size == 2:
        return [*chosen, *(_case("mixtral", {"dp_shard": 2}, fault) for fault in _OF_ROUTERS)]
    faulty = [_case("mixtral", {"dp_shard": 4}, fault, balance_loss=_OF_BALANCE.get(fault, "none")) for fault in FAULTS]
    return [*chosen, *faulty]


def pairs_of_degrees() -> list[MeshCase]:
    """Returns cases of 8 ranks: `ep` 1 to 8 with every pair of the other degrees; families, kinds of balance and
    checkpointing alternate.
    """
    families = itertools.cycle([name for name, spec in FAMILIES.items() if spec.num_experts])
    balances: itertools.cycle[BalanceLoss] = itertools.cycle(("none", "bias"))
    checkpointing = itertools.cycle(("none", "full", "selective"))
    others = [dict.fromkeys(names, 2) for size in range(3) for names in itertools.combinations(_OTHERS, size)]
    chosen: list[MeshCase] = []
    for ep, degrees in itertools.product((1, 2, 4, 8), others):
        replicas = degrees.get("dp_replicate", 1) * degrees.get("pp", 1)
        if 8 // replicas % ep:
            continue
        shards = {"dp_shard": 8 // replicas // degrees.get("cp", 1)}
        name = next(families)
        if FAMILIES[name].num_experts % ep:
            name = "olmoe"
        layout = {**degrees, **shards, "ep": ep, "checkpointing": next(checkpointing)}
        if FAMILIES[name].shared_ffn_size and layout["checkpointing"] == "selective":  # refused beside ep
            layout["checkpointing"] = "every_2"
        layout["attention"] = "flex" if name == "gpt_oss" else "sdpa"
        chosen.append(_case(name, layout, balance_loss=next(balances)))
    return chosen


def in_half() -> list[MeshCase]:
    """Returns pairs of cases of 2 ranks in bf16: all experts on every rank, and the same with expert parallelism."""
    rows = (("bf16", {}), ("bf16 states", {"checkpointing": "full"}))
    return [
        _case("qwen3_moe", {"dp_shard": 2, **layout, "ep": ep}, precision=precision)
        for precision, layout in rows
        for ep in (1, 2)
    ]
