"""FP8 recipes on two and four ranks, what they are held against, and the faults to be seen."""

import contextlib
import copy
import dataclasses
from collections.abc import Generator, Mapping
from typing import Any, cast
from unittest import mock

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only
from torchao.float8 import Float8LinearConfig, convert_to_float8_training, float8_linear, fsdp_utils

from tests.contract import mesh_group
from tests.contract.cases import GLOBAL_BATCH, recipe
from tests.contract.family_cases import FAMILIES
from tests.contract.mesh_cases import MODELS, MeshCase
from tests.contract.mesh_group import STEPS, Trained
from tests.contract.reference import dense_model, make_optimizer
from trainers import data
from trainers.values.batch import BatchPoint
from trainers.values.layout import Layout
from trainers.values.recipe import Recipe

WORLD_SIZE = 2
SEQ_LEN = 32
_DDP: dict[str, Any] = {"engine": "ddp", "dp_replicate": 2}
_STAGE_2: dict[str, Any] = {"engine": "fsdp", "zero_stage": 2, "dp_shard": 2}
_STAGE_3: dict[str, Any] = {"engine": "fsdp", "zero_stage": 3, "dp_shard": 2}
_QUICK: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama", "fp8_tensorwise", {**_DDP, "checkpointing": "full"}),
    ("llama", "fp8_tensorwise", {**_STAGE_3, "checkpointing": "full", "grad_sync": "every"}),
    ("bloom", "fp8_tensorwise", {**_STAGE_2, "prefetch": 1}),
    ("neox", "fp8_tensorwise", {**_STAGE_3, "compile": "block", "checkpointing": "selective"}),
    ("llama", "fp8_rowwise", {**_DDP, "compile": "block"}),
    ("bloom", "fp8_rowwise", {**_DDP, "grad_sync": "every"}),
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
"""On four ranks."""
# Fault -> precision; planted on shards.
FAULTS: Mapping[str, str] = {
    "scale along the wrong axis": "fp8_rowwise",
    "scale of a shard alone": "fp8_tensorwise",
}


def cases() -> list[MeshCase]:
    """Each engine with each kind of scale, checkpointed, accumulated and compiled; then the faults."""
    found = [MeshCase(recipe=float8_recipe(*each[:2]), layout=Layout(**each[2])) for each in _QUICK]
    faulty = [
        MeshCase(recipe=float8_recipe("llama", precision), layout=Layout(**_STAGE_3), fault=fault)
        for fault, precision in FAULTS.items()
    ]
    return [*found, *faulty]


def wide_cases() -> list[MeshCase]:
    """Hybrid shards, pipelines and context parallelism, each with both kinds of scale; every family after Llama; then a
    fault in hybrid shards, whose two groups agree on scales that are wrong alike.
    """
    families: list[tuple[str, str, dict[str, Any]]] = [
        each
        for name in FAMILIES
        for each in (
            (name, "fp8_tensorwise", {**_STAGE_3, "dp_replicate": 2}),
            (name, "fp8_rowwise", {**_DDP, "dp_replicate": 4, "checkpointing": "selective"}),
        )
    ]
    found = [MeshCase(recipe=float8_recipe(*each[:2]), layout=Layout(**each[2])) for each in (*_SPLIT, *families)]
    return [*found, dataclasses.replace(found[0], fault="scale of a shard alone")]


def float8_recipe(model: str, precision: str) -> Recipe:
    """The recipe of the contract at a length that FP8 takes."""
    known = {**MODELS, **FAMILIES}[model]
    longer = dataclasses.replace(known, max_positions=SEQ_LEN) if known.max_positions else known
    return dataclasses.replace(recipe(longer, precision), seq_len=SEQ_LEN)


def run_all(cases: list[MeshCase]) -> list[dict[str, Any]]:
    """`mesh_group.run_all` with the faults of FP8."""
    results: list[dict[str, Any]] = []
    for each in cases:
        with planted(each.fault):
            results += mesh_group.run_all([dataclasses.replace(each, fault="")])
    return results


@contextlib.contextmanager
def planted(fault: str) -> Generator[None, None, None]:
    """Breaks what torchao scales, while an engine is made and runs."""
    to_float8 = float8_linear.hp_tensor_to_float8_dynamic

    def along_other_axis(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        made = to_float8(tensor, *args, **kwargs)
        if tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1]:
            made._scale = made._scale.t()  # pyright: ignore[reportPrivateUsage]
        return made

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


def expected(case: MeshCase) -> Trained:
    """The same steps in one process, micro-batch by micro-batch, since each has scales of its own: transformers' eager
    model with torchao's layers in its blocks, by nothing of the engines' code.
    """
    chosen, layout = case.recipe, case.layout
    master = dense_model(chosen)
    weights = {name: weight.detach().clone() for name, weight in master.named_parameters()}
    optimizer = make_optimizer(master, chosen)
    batch = BatchPoint.of(chosen, layout, GLOBAL_BATCH // (2 * layout.pp * layout.data_parallel))
    source = data.source(chosen)
    computing = (_autocast if layout.engine == "ddp" else _in_bf16)(master, chosen)
    if layout.attention == "sdpa":  # another kernel rounds to other bf16 numbers, and these to other FP8 ones
        cast(Any, computing.model).set_attn_implementation("sdpa")
    _cast_by_parts(computing.model, layout.cp, chosen.seq_len)
    with torch.no_grad(), computing.context():
        logits = computing.model(torch.from_numpy(source.sequences(0, range(2)))[:, :-1]).logits
    gradients: dict[str, torch.Tensor] = {}
    losses: list[float] = []
    norms: list[float] = []
    for step in range(STEPS):
        micro_batches = [
            data.sample_indices(batch, data_parallel=layout.data_parallel, rank=rank, micro_step=micro_step)
            for rank in range(layout.data_parallel)
            for micro_step in range(batch.grad_accum)
        ]
        optimizer.zero_grad(set_to_none=False)
        of_step: list[torch.Tensor] = []
        for indices in micro_batches:
            tokens = torch.from_numpy(source.sequences(step, indices))
            computing.take(master)
            with computing.context():
                made = computing.model(tokens[:, :-1]).logits
                loss = F.cross_entropy(made.float().flatten(0, 1), tokens[:, 1:].flatten())
            (loss / len(micro_batches)).backward()
            computing.give(master)
            of_step.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(master.parameters(), chosen.grad_clip).item())
        if not step:
            gradients = {name: each.grad.clone() for name, each in master.named_parameters() if each.grad is not None}
        optimizer.step()
        losses.append(torch.stack(of_step).mean().item())
    return Trained(weights=weights, logits=logits, gradients=gradients, losses=losses, grad_norms=norms)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Computing:
    """A copy of the model that computes as an engine lets it, beside fp32 weights."""

    model: torch.nn.Module
    autocasts: bool
    rounded: frozenset[str]
    """Weights that are rounded to bf16 before anything else."""

    def context(self) -> Any:
        return torch.autocast("cpu", torch.bfloat16) if self.autocasts else contextlib.nullcontext()

    @torch.no_grad()
    def take(self, master: torch.nn.Module) -> None:
        """Takes the master's weights."""
        for (name, mine), whole in zip(self.model.named_parameters(), master.parameters(), strict=True):
            mine.copy_(whole.bfloat16() if name in self.rounded else whole)
            mine.grad = None

    def give(self, master: torch.nn.Module) -> None:
        """Adds the gradients to the master's."""
        for mine, whole in zip(self.model.parameters(), master.parameters(), strict=True):
            assert mine.grad is not None
            whole.grad = mine.grad.float() if whole.grad is None else whole.grad + mine.grad.float()


def _autocast(master: torch.nn.Module, chosen: Recipe) -> _Computing:
    """What DDP runs. torchao casts the inputs of its layers as CUDA's autocast does, and not on a CPU."""
    model = copy.deepcopy(master)
    layers = _converted(model, chosen)
    for layer in layers.values():
        layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].bfloat16(),))
    rounded = {f"{name}.weight" for name in layers} if chosen.float8_scaling == "rowwise" else set[str]()
    return _Computing(model=model, autocasts=True, rounded=frozenset(rounded))


def _in_bf16(master: torch.nn.Module, chosen: Recipe) -> _Computing:
    """What FSDP2 runs: all weights in bf16, but those that are cast from fp32 where they are gathered."""
    model = copy.deepcopy(master)
    for parameter in model.parameters():  # and not the buffers, which FSDP2 leaves as they are
        parameter.data = parameter.data.bfloat16()
    layers = _converted(model, chosen)
    # FSDP2 casts what enters a block too: OLMo 2's rotary tables are in fp32.
    for name, block in model.named_modules():
        if name.startswith(_start(chosen)) and name.removeprefix(_start(chosen)).isdigit():
            block.register_forward_pre_hook(_cast_all, with_kwargs=True)
    for layer in layers.values() if chosen.float8_scaling == "tensorwise" else ():
        layer.weight.data = layer.weight.data.float()
    return _Computing(model=model, autocasts=False, rounded=frozenset())


def _start(chosen: Recipe) -> str:
    """How the names of what lies in blocks begin."""
    in_blocks = {"bloom": "transformer.h.", "gpt_neox": "gpt_neox.layers."}
    return in_blocks.get(chosen.model.architecture, "model.layers.")


def _cast_all(_module: torch.nn.Module, *given: Any) -> Any:
    """Arguments of a call with every fp32 tensor in bf16."""
    return tree_map_only(torch.Tensor, lambda each: each.bfloat16() if each.dtype is torch.float32 else each, given)


def _cast_by_parts(model: torch.nn.Module, cp: int, seq_len: int) -> None:
    """Lets FP8 layers compute the part of each context-parallel rank by itself, which has scales of its own."""
    parts = torch.arange(seq_len).view(2 * cp, -1)
    ranks = [torch.cat((parts[rank], parts[-1 - rank])) for rank in range(cp)]
    back = torch.cat(ranks).argsort()
    layers: list[Any] = [each for each in model.modules() if isinstance(each, float8_linear.Float8Linear)]
    for layer in layers if cp > 1 else ():
        whole = layer.forward

        def forward(values: torch.Tensor, whole: Any = whole) -> torch.Tensor:
            return torch.cat([whole(values[:, mine]) for mine in ranks], dim=1)[:, back]

        layer.forward = forward


def _converted(model: torch.nn.Module, chosen: Recipe) -> dict[str, torch.nn.Linear]:
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(chosen.float8_scaling), emulate=True)
    start = _start(chosen)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name.startswith(start))
    return {name: each for name, each in model.named_modules() if isinstance(each, float8_linear.Float8Linear)}
