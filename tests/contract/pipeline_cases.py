"""Pipelines of four ranks with data, tensor and context parallelism inside stages, and faults that must be detected."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tests.contract.cases import recipe
from tests.contract.mesh_cases import MODELS, MeshCase
from trainers.spec.layout import Layout
from trainers.spec.support import standing_refusal

WORLD_SIZE = 4
DEEP = {name: dataclasses.replace(spec, num_layers=5 if name == "gpt2" else 4) for name, spec in MODELS.items()}

_DDP: dict[str, Any] = {"engine": "ddp"}
_STAGE_2: dict[str, Any] = {"engine": "fsdp", "zero_stage": 2}
_STAGE_3: dict[str, Any] = {"engine": "fsdp", "zero_stage": 3}
_INTERLEAVED: dict[str, Any] = {"pp": 2, "schedule": "interleaved", "virtual": 2}
_CHUNKED: dict[str, Any] = {"attention": "sdpa", "loss": "chunked"}

# Model, precision, and the layout: every engine, architecture and schedule, every other axis inside a stage.
_QUICK: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("bloom", "fp32", {**_DDP, "pp": 2, "dp_replicate": 2}),
    ("bloom", "fp32", {**_STAGE_3, **_CHUNKED, "pp": 2, "dp_shard": 2, "checkpointing": "full"}),
    ("bloom", "fp32", {**_STAGE_3, **_INTERLEAVED, "attention": "sdpa", "tp": 2}),
    ("gpt2", "fp32", {**_STAGE_2, **_INTERLEAVED, "dp_shard": 2, "checkpointing": "every_2"}),
    ("gpt2", "bf16", {**_DDP, **_CHUNKED, "pp": 4}),
    ("gpt2", "fp32", {**_DDP, **_CHUNKED, "pp": 2, "tp": 2, "checkpointing": "selective"}),
    ("llama", "fp32", {**_STAGE_3, **_CHUNKED, "pp": 2, "cp": 2, "checkpointing": "every_2"}),
    ("llama", "bf16", {**_STAGE_2, **_CHUNKED, "pp": 2, "tp": 2}),
    ("llama", "fp32", {**_DDP, **_INTERLEAVED, "cp": 2, "attention": "flex"}),
    ("bloom", "fp16", {**_STAGE_3, **_CHUNKED, "pp": 2, "dp_shard": 2}),
    ("neox", "fp32", {**_STAGE_3, "pp": 4, "offload": "all"}),
    ("bloom", "bf16 states", {**_DDP, "pp": 2, "dp_replicate": 2, "offload": "moments"}),
    ("neox", "bf16 states", {**_STAGE_2, **_INTERLEAVED, "dp_shard": 2, "compile": "block", "attention": "sdpa"}),
)

# Fault -> model and layout on which it is planted.
FAULTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gradients of tied copies not summed": ("bloom", {**_STAGE_3, "pp": 2, "dp_shard": 2}),
    "norm counts tied copies twice": ("bloom", {**_STAGE_3, "pp": 2, "dp_shard": 2}),
    "norm of this rank's stages alone": ("llama", {**_DDP, "pp": 2, "dp_replicate": 2}),
    "loss not divided by micro-batches": ("llama", {**_DDP, "pp": 2, "dp_replicate": 2}),
    "gradients exchanged for the last micro-batch alone": ("gpt2", {**_DDP, "pp": 2, "dp_replicate": 2}),
    "gradients not exchanged": ("gpt2", {**_DDP, "pp": 2, "dp_replicate": 2}),
    "ALiBi of local heads": ("bloom", {**_STAGE_3, **_INTERLEAVED, "attention": "sdpa", "tp": 2}),
    "positions added by every stage": ("gpt2", {**_DDP, "pp": 2, "dp_replicate": 2}),
    "stages receive tokens in another order": ("gpt2", {**_DDP, "pp": 2, "tp": 2}),
}


def _case(model: str, precision: str, layout: Mapping[str, Any], fault: str = "") -> MeshCase:
    half, _, states = precision.partition(" ")
    chosen = recipe(DEEP[model], half, states="bf16" if states else "fp32")
    return MeshCase(recipe=chosen, layout=Layout(**layout), fault=fault)


def quick() -> list[MeshCase]:
    """Returns the cases and faults that run at every change."""
    faulty = [_case(model, "fp32", layout, fault) for fault, (model, layout) in FAULTS.items()]
    return [*(_case(*arguments) for arguments in _QUICK), *faulty]


def product() -> list[MeshCase]:
    """Returns a case for every allowed combination of architecture, engine, schedule, inner axis and checkpointing."""
    return [case for case in _product() if standing_refusal(case.recipe, case.layout, WORLD_SIZE) is None]


def _product() -> Iterator[MeshCase]:
    for model in DEEP:
        for engine in (_DDP, _STAGE_2, _STAGE_3):
            for schedule in ({"pp": 2}, _INTERLEAVED):
                for inner in ("dp_shard" if engine["engine"] == "fsdp" else "dp_replicate", "tp", "cp"):
                    for checkpointing in ("none", "full"):
                        kernels = {**_CHUNKED, "checkpointing": checkpointing}
                        yield _case(model, "fp32", {**engine, **schedule, **kernels, inner: 2})
