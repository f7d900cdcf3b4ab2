"""Layouts of 4 and 8 ranks with tensor, context and data parallelism for a tiny model, and faults to be detected."""

import dataclasses
import itertools
import random
from collections.abc import Mapping
from typing import Any

from tests.contract.cases import SEQ_LEN, recipe
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

WORLD_SIZE = 8
"""Ranks of layouts split along three axes, and of the whole product."""
PAIRS_SIZE = 4
"""Ranks of `pairwise`; a case takes less than half of its time on 8 ranks."""
# No other width is that of the vocabulary: logits are known by it.
_SIZES: dict[str, Any] = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 104, "init_std": 0.2}
MODELS = {
    "bloom": ModelSpec(name="bloom", architecture="bloom", **_SIZES),
    "gpt2": ModelSpec(name="gpt2", architecture="gpt2", max_positions=SEQ_LEN, **_SIZES),
    "neox": ModelSpec(name="neox", architecture="gpt_neox", max_positions=SEQ_LEN, **_SIZES),
    "llama": ModelSpec(name="llama", architecture="llama", num_kv_heads=2, **_SIZES),
}
DATA_PARALLEL: Mapping[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "stage 2": {"engine": "fsdp", "zero_stage": 2},
    "stage 3": {"engine": "fsdp", "zero_stage": 3},
    "hybrid": {"engine": "fsdp", "zero_stage": 3, "dp_replicate": 2},
}
VALUES: Mapping[str, tuple[Any, ...]] = {
    "model": tuple(MODELS),
    "data parallel": tuple(DATA_PARALLEL),
    "degrees": ((1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (4, 2)),
    "attention": ("eager", "sdpa", "flex"),
    "loss": ("plain", "chunked"),
    "checkpointing": ("none", "every_2", "selective", "full"),
    "precision": ("fp32", "bf16", "bf16 states"),
    "grad_sync": ("last", "every"),
    "offload": ("none", "moments", "all"),
}
"""The values that `pairwise` combines; degrees are (cp, tp)."""

# Fault -> model and (cp, tp) on which it is planted.
FAULTS: Mapping[str, tuple[str, tuple[int, int]]] = {
    "ALiBi of local heads": ("bloom", (1, 2)),
    "gradients of norms not summed": ("llama", (1, 2)),
    "bias added by every rank": ("gpt2", (1, 2)),
    "norm counts replicated gradients twice": ("gpt2", (1, 2)),
    "q, k and v cut as one matrix": ("gpt2", (1, 2)),
    "rows of the vocabulary not offset": ("llama", (1, 2)),
    "gradients of other ranks' keys dropped": ("llama", (2, 1)),
    "positions not cut": ("llama", (2, 1)),
    "mask in the order of ranks": ("neox", (2, 1)),
    "ALiBi by place": ("bloom", (2, 1)),
    "tie lost when weights are made": ("gpt2", (1, 2)),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshCase:
    """A run whose first gradients, losses and norms are compared with the dense model's."""

    recipe: Recipe
    layout: Layout
    fault: str = ""
    micro_steps: int = 2
    """Largest number of micro-steps of a step per pipeline stage."""
    heavy: bool = False
    """Whether it runs with `-m heavy` alone."""

    @property
    def name(self) -> str:
        """The case's name in pytest's output."""
        precision = "bf16 states" if self.recipe.state_precision == "bf16" else self.recipe.compute_precision
        mask = "" if self.recipe.attention_mask == "causal" else f"{self.recipe.attention_mask} mask"
        trained = "" if self.recipe.trained_tokens == "all" else f"{self.recipe.trained_tokens} tokens"
        balance = "" if self.recipe.balance_loss == "none" else f"{self.recipe.balance_loss} balance"
        parts = [
            self.recipe.model.name,
            precision,
            mask,
            trained,
            balance,
            self.layout.degrees,
            self.layout.label,
            "" if self.micro_steps > 1 else "one micro-step",
            self.fault,
        ]
        return ", ".join(filter(None, parts))


def case(values: Mapping[str, Any], world_size: int = WORLD_SIZE) -> MeshCase | None:
    """Returns the case with these values of `VALUES`; None if it is refused or degrees do not divide the ranks."""
    cp, tp = values["degrees"]
    data_parallel = {"zero_stage": 0, "dp_replicate": 1, **DATA_PARALLEL[values["data parallel"]]}
    ranks, replicas = world_size // (cp * tp), data_parallel["dp_replicate"]
    if world_size % (cp * tp) or ranks % replicas:
        return None
    free = "dp_shard" if data_parallel["zero_stage"] else "dp_replicate"
    degrees = {**data_parallel, free: ranks // (replicas if free == "dp_shard" else 1), "cp": cp, "tp": tp}
    kernels = {name: values[name] for name in ("attention", "loss", "checkpointing", "grad_sync", "offload")}
    layout = Layout(**degrees, **kernels, compile=values.get("compile", "none"))
    half, _, states = values["precision"].partition(" ")
    chosen = recipe(MODELS[values["model"]], half, states="bf16" if states else "fp32")
    return None if standing_refusal(chosen, layout, world_size) else MeshCase(recipe=chosen, layout=layout)


def pairwise() -> list[MeshCase]:
    """Returns cases on 4 ranks in which every two compatible values occur together.

    Each case is the one that adds most pairs among several random cases with a pair that is still missing. A pair for
    which no case can be drawn counts as refused.
    """
    drawn = random.Random(0)
    axes = list(itertools.combinations(VALUES, 2))
    missing = {((a, x), (b, y)) for a, b in axes for x in VALUES[a] for y in VALUES[b]}
    chosen_cases: list[MeshCase] = []
    while missing:
        pair = min(missing, key=repr)
        tries = [{**{name: drawn.choice(VALUES[name]) for name in VALUES}, **dict(pair)} for _ in range(40)]
        built = [(set(itertools.combinations(values.items(), 2)), case(values, PAIRS_SIZE)) for values in tries]
        pairs, best = max(built, key=lambda entry: len(entry[0] & missing) if entry[1] is not None else -1)
        missing -= {pair} if best is None else pairs
        chosen_cases += [] if best is None else [best]
    return chosen_cases


def wide() -> list[MeshCase]:
    """Returns cases on 8 ranks, the smallest number for a split along three axes: replicas of shards whose ranks are
    split again, a pipeline with all other degrees, and pipelines with only an embedding in the first and only a head in
    the last stage, each split over ranks.
    """
    plain = {"attention": "sdpa", "loss": "chunked", "precision": "fp32", "offload": "none", "checkpointing": "full"}
    rows = (
        {"model": "llama", "data parallel": "hybrid", "degrees": (1, 2), "grad_sync": "every"},
        {"model": "bloom", "data parallel": "hybrid", "degrees": (2, 1), "grad_sync": "last"},
        {"model": "neox", "data parallel": "stage 3", "degrees": (2, 2), "grad_sync": "last"},
    )
    split = (case({**plain, **row}) for row in rows)
    layouts = {
        "llama": Layout(engine="ddp", pp=4, tp=2),
        "bloom": Layout(engine="fsdp", zero_stage=3, pp=4, tp=2, loss="chunked"),
        "gpt2": Layout(engine="ddp", pp=2, tp=2, cp=2, attention="sdpa"),
    }
    pipelines = (MeshCase(recipe=recipe(MODELS[name], "fp32"), layout=layout) for name, layout in layouts.items())
    built = [mesh_case for mesh_case in (*split, *pipelines) if mesh_case is not None]
    return [dataclasses.replace(mesh_case, heavy=True) for mesh_case in built]


def product() -> list[MeshCase]:
    """Returns a case for every allowed model, data parallelism, degrees and checkpointing; losses alternate."""
    plain = {"attention": "sdpa", "precision": "fp32", "grad_sync": "last", "offload": "none"}
    names = ("model", "data parallel", "degrees", "checkpointing")
    chosen = (
        dict(zip(names, combination, strict=True))
        for combination in itertools.product(*(VALUES[name] for name in names))
    )
    built = (case({**plain, **values, "loss": VALUES["loss"][place % 2]}) for place, values in enumerate(chosen))
    return [mesh_case for mesh_case in built if mesh_case is not None]


def compiled() -> list[MeshCase]:
    """Returns cases on 2 ranks with compiled blocks, and their checkpoints inside the compiled code. torch 2.13 loses
    gradients of DTensors in such blocks.
    """
    plain = {"attention": "sdpa", "loss": "chunked", "precision": "fp32", "grad_sync": "last", "offload": "none"}
    chosen = (
        {"model": "llama", "data parallel": "stage 3", "degrees": (1, 2), "checkpointing": "full"},
        {"model": "bloom", "data parallel": "ddp", "degrees": (2, 1), "checkpointing": "selective"},
        {"model": "gpt2", "data parallel": "stage 2", "degrees": (1, 2), "checkpointing": "budget_50"},
        {
            "model": "llama",
            "data parallel": "ddp",
            "degrees": (1, 2),
            "checkpointing": "selective",
            "precision": "bf16",
        },
    )
    built = [case({**plain, **values, "compile": "block"}, world_size=2) for values in chosen]
    return [
        dataclasses.replace(mesh_case, heavy=place >= 2)
        for place, mesh_case in enumerate(built)
        if mesh_case is not None
    ]


def faulty() -> list[MeshCase]:
    """Returns a case for each fault on 2 ranks, in a quarter of the time of 8."""
    plain = {"attention": "sdpa", "loss": "plain", "checkpointing": "none", "precision": "fp32"}
    same = {**plain, "grad_sync": "last", "offload": "none", "data parallel": "stage 3"}
    built = {
        fault: case({**same, "model": model, "degrees": degrees}, world_size=2)
        for fault, (model, degrees) in FAULTS.items()
    }
    return [dataclasses.replace(mesh_case, fault=fault) for fault, mesh_case in built.items() if mesh_case is not None]
