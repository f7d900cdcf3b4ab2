"""FP8 recipes on two and four ranks, and faults that must be detected."""

import contextlib
import dataclasses
from collections.abc import Generator, Mapping
from typing import Any
from unittest import mock

import torch
from torchao.float8 import float8_linear, fsdp_utils

from tests.contract import mesh_group
from tests.contract.cases import recipe
from tests.contract.family_cases import FAMILIES
from tests.contract.mesh_cases import MODELS, MeshCase
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

WORLD_SIZE = 2
SEQ_LEN = 32
_DDP: dict[str, Any] = {"engine": "ddp", "dp_replicate": 2}
_STAGE_2: dict[str, Any] = {"engine": "fsdp", "zero_stage": 2, "dp_shard": 2}
_STAGE_3: dict[str, Any] = {"engine": "fsdp", "zero_stage": 3, "dp_shard": 2}
_QUICK: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama", "fp8_tensorwise", {**_DDP, "checkpointing": "full"}),
    ("llama", "fp8_tensorwise", {**_STAGE_3, "checkpointing": "full", "grad_sync": "every"}),
    ("bloom", "fp8_tensorwise", {**_STAGE_2, "prefetch": 1, "offload": "moments"}),
    ("neox", "fp8_tensorwise", {**_STAGE_3, "compile": "block", "checkpointing": "selective"}),
    ("llama", "fp8_rowwise", {**_DDP, "compile": "block"}),
    ("bloom", "fp8_rowwise", {**_DDP, "grad_sync": "every", "offload": "moments"}),
    ("neox", "fp8_rowwise", {**_STAGE_3, "checkpointing": "selective"}),
)
_SPLIT: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama", "fp8_tensorwise", {**_STAGE_3, "dp_replicate": 2, "grad_sync": "every"}),
    ("bloom", "fp8_rowwise", {**_STAGE_2, "dp_replicate": 2, "checkpointing": "full"}),
    ("llama", "fp8_tensorwise", {**_STAGE_3, "pp": 2}),
    ("bloom", "fp8_tensorwise", {**_DDP, "pp": 2}),
    ("neox", "fp8_rowwise", {**_STAGE_2, "pp": 2, "checkpointing": "selective"}),
    ("llama", "fp8_tensorwise", {**_STAGE_3, "cp": 2, "attention": "sdpa"}),
    ("neox", "fp8_tensorwise", {**_DDP, "cp": 2, "attention": "sdpa"}),
    ("llama", "fp8_rowwise", {**_STAGE_2, "cp": 2, "attention": "sdpa"}),
    ("llama", "fp8_tensorwise", {"engine": "fsdp", "zero_stage": 3, "pp": 2, "cp": 2, "attention": "sdpa"}),
)
"""Models, precisions and layouts of cases on four ranks."""
# Fault -> precision; planted on shards.
FAULTS: Mapping[str, str] = {
    "scale along the wrong axis": "fp8_rowwise",
    "scale of a shard alone": "fp8_tensorwise",
}


def cases() -> list[MeshCase]:
    """Returns cases of each engine and scale with checkpointing, accumulation and compiled blocks; then the faults."""
    mesh_cases = [MeshCase(recipe=float8_recipe(*row[:2]), layout=Layout(**row[2])) for row in _QUICK]
    faulty = [
        MeshCase(recipe=float8_recipe("llama", precision), layout=Layout(**_STAGE_3), fault=fault)
        for fault, precision in FAULTS.items()
    ]
    return [*mesh_cases, *faulty]


def wide_cases() -> list[MeshCase]:
    """Returns the cases of four ranks: hybrid shards, pipelines and context parallelism, each with both kinds of scale;
    every family of `FAMILIES`; and a fault in hybrid shards, whose two groups compute the same wrong scales and
    therefore agree.
    """
    families: list[tuple[str, str, dict[str, Any]]] = [
        row
        for name in FAMILIES
        for row in (
            (name, "fp8_tensorwise", {**_STAGE_3, "dp_replicate": 2}),
            (name, "fp8_rowwise", {**_DDP, "dp_replicate": 4, "checkpointing": "selective"}),
        )
    ]
    mesh_cases = [MeshCase(recipe=float8_recipe(*row[:2]), layout=Layout(**row[2])) for row in (*_SPLIT, *families)]
    return [*mesh_cases, dataclasses.replace(mesh_cases[0], fault="scale of a shard alone")]


def float8_recipe(model: str, precision: str) -> Recipe:
    """Returns the recipe of the contract with a sequence length that FP8 supports."""
    spec = {**MODELS, **FAMILIES}[model]
    longer = dataclasses.replace(spec, max_positions=SEQ_LEN) if spec.max_positions else spec
    # Routers compute in fp32 here and in bf16 in transformers, which then chooses other experts.
    routing: dict[str, Any] = {"routing": "balanced"} if spec.num_experts else {}
    return dataclasses.replace(recipe(longer, precision), seq_len=SEQ_LEN, **routing)


def run_all(cases: list[MeshCase]) -> list[dict[str, Any]]:
    """Runs `mesh_group.run_all` with the faults of FP8."""
    results: list[dict[str, Any]] = []
    for case in cases:
        with planted(case.fault):
            results += mesh_group.run_all([dataclasses.replace(case, fault="")])
    return results


@contextlib.contextmanager
def planted(fault: str) -> Generator[None, None, None]:
    """Breaks torchao's scales as `fault` names, while an engine is built and runs."""
    to_float8 = float8_linear.hp_tensor_to_float8_dynamic

    def along_other_axis(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        converted = to_float8(tensor, *args, **kwargs)
        if tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1]:
            converted._scale = converted._scale.t()  # pyright: ignore[reportPrivateUsage]
        return converted

    def of_shard(*args: Any, **kwargs: Any) -> Any:
        return to_float8(*args, **{**kwargs, "reduce_amax": False})

    change = {
        "scale along the wrong axis": lambda: mock.patch.object(
            float8_linear, "hp_tensor_to_float8_dynamic", along_other_axis
        ),
        "scale of a shard alone": lambda: mock.patch.object(fsdp_utils, "hp_tensor_to_float8_dynamic", of_shard),
    }
    with change[fault]() if fault else contextlib.nullcontext():
        yield
