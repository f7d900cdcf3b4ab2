"""The reference for FP8 recipes: torchao's emulation in one process.

Values that each rank rounds separately are also rounded separately here.
"""

import contextlib
import copy
import dataclasses
import operator
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only
from torchao.float8 import Float8LinearConfig, convert_to_float8_training, float8_linear
from transformers import AttentionInterface

from tests.contract.cases import GLOBAL_BATCH
from tests.contract.mesh_cases import MeshCase
from tests.contract.mesh_group import STEPS, Trained
from tests.contract.reference import dense_model, make_optimizer
from trainers import data
from trainers.spec.architectures import architecture_of
from trainers.spec.batch import BatchPoint
from trainers.spec.recipe import Recipe


def expected(case: MeshCase, stepped: Mapping[str, torch.Tensor]) -> Trained:
    """Runs the case's steps in one process, without the engines' code, and returns the expected result.

    The model is transformers' with torchao's FP8 layers in its blocks. Each micro-batch, and each context-parallel
    rank's part of a sequence, is computed separately, because each has its own FP8 scales.

    The second step starts from the weights `stepped`, which are the ranks' weights after their first step, and not from
    the weights computed here. The two differ in their last bit, because sums run in another order. If this rounds a
    weight to a different bf16 number, and the weight is the largest of an FP8 row, gradients change by a hundredth.
    """
    chosen, layout = case.recipe, case.layout
    master = dense_model(chosen)
    weights = {name: weight.detach().clone() for name, weight in master.named_parameters()}
    optimizer = make_optimizer(master, chosen)
    batch = BatchPoint.of(chosen, layout, GLOBAL_BATCH // (2 * layout.pp * layout.data_parallel))
    source = data.source(chosen)
    parts = [(_autocast if layout.engine == "ddp" else _in_bf16)(master, chosen) for _ in range(layout.cp)]
    attention = _Attention(layout.cp, chosen.seq_len)
    if layout.attention == "sdpa":  # another kernel rounds to other bf16 numbers, and these to other FP8 ones
        for part in parts:
            attention.take(part.model)
    gradients: dict[str, torch.Tensor] = {}
    master_weights: dict[str, torch.Tensor] = {}
    losses: list[float] = []
    norms: list[float] = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        of_step: list[torch.Tensor] = []
        for rank in range(layout.data_parallel):
            for micro_step in range(batch.grad_accum):
                indices = data.sample_indices(
                    batch, data_parallel=layout.data_parallel, rank=rank, micro_step=micro_step
                )
                for part in parts:
                    part.take(master)
                loss = attention.loss(parts, torch.from_numpy(source.sequences(step, indices)))
                (loss / (layout.data_parallel * batch.grad_accum)).backward()
                for part in parts:
                    part.give(master)
                of_step.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(master.parameters(), chosen.grad_clip).item())
        if not step:
            gradients = {
                name: parameter.grad.clone()
                for name, parameter in master.named_parameters()
                if parameter.grad is not None
            }
        optimizer.step()
        losses.append(torch.stack(of_step).mean().item())
        if not step:
            master_weights = {name: weight.detach().clone() for name, weight in master.named_parameters()}
            master.load_state_dict(dict(stepped), strict=False)
    return Trained(
        weights=weights,
        stepped=master_weights,
        logits=torch.empty(0),
        gradients=gradients,
        losses=losses,
        grad_norms=norms,
    )


class _Attention:
    """Attention across models that each hold a part of every sequence. Each model runs in its own thread; the threads
    wait here for each other's keys and values.
    """

    def __init__(self, size: int, seq_len: int) -> None:
        pieces = torch.arange(seq_len).view(2 * size, -1)
        self._places = [torch.cat((pieces[rank], pieces[-1 - rank])) for rank in range(size)]
        self._all_met = threading.Barrier(size, timeout=60)
        self._inputs: list[Any] = [None] * size
        self._of_thread = threading.local()

    def take(self, model: torch.nn.Module) -> None:
        """Makes this object the attention of `model` for sequences in parts, and sdpa for whole sequences."""
        AttentionInterface.register("parts", self._attend)
        untyped_model: Any = model
        untyped_model.set_attn_implementation("parts" if len(self._places) > 1 else "sdpa")

    def loss(self, models: "list[_Computing]", tokens: torch.Tensor) -> torch.Tensor:
        """Returns the mean of the parts' losses."""
        with ThreadPoolExecutor(len(models)) as threads:
            losses = threads.map(lambda rank: self._loss_of(rank, models[rank], tokens), range(len(models)))
            return torch.stack([*losses]).mean()

    def _loss_of(self, rank: int, computing: "_Computing", tokens: torch.Tensor) -> torch.Tensor:
        torch.set_num_threads(1)
        self._of_thread.rank = rank
        places = self._places[rank]
        undivided = len(self._places) == 1
        positions = {} if undivided else {"position_ids": places[None]}
        with computing.context():
            logits = computing.model(tokens[:, :-1][:, places], **positions).logits
            return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:][:, places].flatten())

    def _attend(self, _module: Any, query: Any, key: Any, value: Any, _mask: Any, scaling: float, **_: Any) -> Any:
        rank = self._of_thread.rank
        query, *self._inputs[rank] = query.bfloat16(), key.bfloat16(), value.bfloat16()
        self._all_met.wait()
        keys, values = (torch.cat(tensors, 2) for tensors in zip(*self._inputs, strict=True))
        self._all_met.wait()  # before the next layer writes over what was given
        visible = self._places[rank][:, None] >= torch.cat(self._places)
        grouped = keys.shape[1] != query.shape[1]
        out = F.scaled_dot_product_attention(query, keys, values, visible, scale=scaling, enable_gqa=grouped)
        return out.transpose(1, 2), None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Computing:
    """A copy of the model that computes in an engine's precision, next to the master's fp32 weights."""

    model: torch.nn.Module
    autocasts: bool
    rounded: frozenset[str]
    """The names of weights that are first rounded to bf16."""

    def context(self) -> Any:
        return torch.autocast("cpu", torch.bfloat16) if self.autocasts else contextlib.nullcontext()

    @torch.no_grad()
    def take(self, master: torch.nn.Module) -> None:
        """Copies the master's weights and clears the gradients."""
        for (name, working), master_weight in zip(self.model.named_parameters(), master.parameters(), strict=True):
            working.copy_(master_weight.bfloat16() if name in self.rounded else master_weight)
            working.grad = None

    def give(self, master: torch.nn.Module) -> None:
        """Adds this copy's gradients to the master's."""
        for working, master_weight in zip(self.model.parameters(), master.parameters(), strict=True):
            assert working.grad is not None
            master_weight.grad = (
                working.grad.float() if master_weight.grad is None else master_weight.grad + working.grad.float()
            )


def _autocast(master: torch.nn.Module, chosen: Recipe) -> _Computing:
    """Returns a copy of the model that computes as with DDP: fp32 weights, and bf16 through autocast.

    torchao casts the inputs of its layers under CUDA's autocast, but not under a CPU's, so hooks cast them here. With
    rowwise scales the weights of these layers are first rounded to bf16.
    """
    model = _copied(master, chosen)
    layers = _converted(model, chosen)
    for layer in layers.values():
        layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].bfloat16(),))
    rounded = {f"{name}.weight" for name in layers} if chosen.float8_scaling == "rowwise" else set[str]()
    return _Computing(model=model, autocasts=True, rounded=frozenset(rounded))


def _in_bf16(master: torch.nn.Module, chosen: Recipe) -> _Computing:
    """Returns a copy of the model that computes as with FSDP2: all weights are bf16. With tensorwise scales the FP8
    layers' weights stay fp32, because FSDP2 casts them from fp32 in the gather.
    """
    model = _copied(master, chosen)
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


def _copied(master: torch.nn.Module, chosen: Recipe) -> torch.nn.Module:
    """Returns a copy that scales hidden states before the head as the engines do, where transformers scales logits
    after it: in bf16 these round to other numbers.
    """
    model, factor = copy.deepcopy(master), chosen.model.logit_factor
    if factor != 1:
        path, _, name = architecture_of(chosen.model.architecture).logit_factor.rpartition(".")
        setattr(operator.attrgetter(path)(model) if path else model, name, 1.0)
        model.get_submodule("lm_head").register_forward_pre_hook(lambda _, inputs: (inputs[0] * factor,))
    return model


def _start(chosen: Recipe) -> str:
    """Returns the common prefix of the names of all modules in blocks."""
    in_blocks = {"bloom": "transformer.h.", "gpt_neox": "gpt_neox.layers."}
    return in_blocks.get(chosen.model.architecture, "model.layers.")


def _cast_all(_module: torch.nn.Module, *inputs: Any) -> Any:
    """Returns a call's arguments with every fp32 tensor cast to bf16."""
    return tree_map_only(
        torch.Tensor, lambda tensor: tensor.bfloat16() if tensor.dtype is torch.float32 else tensor, inputs
    )


def _converted(model: torch.nn.Module, chosen: Recipe) -> dict[str, torch.nn.Linear]:
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(chosen.float8_scaling), emulate=True)
    start = _start(chosen)

    def converts(layer: torch.nn.Module, name: str) -> bool:
        """Returns whether it is a layer of a block whose sizes FP8's products support: Qwen2's gate has one output."""
        sizes = (layer.in_features, layer.out_features) if isinstance(layer, torch.nn.Linear) else ()
        return name.startswith(start) and not any(size % 16 for size in sizes)

    convert_to_float8_training(model, config=config, module_filter_fn=converts)
    return {name: module for name, module in model.named_modules() if isinstance(module, float8_linear.Float8Linear)}
