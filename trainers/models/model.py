"""Builds a transformers model from a `ModelSpec`: parameters on the meta device, buffers real, dropout off.

Dropout is off whatever the configuration says: its mask would depend on how the batch is cut over ranks and
micro-steps, and a layout must not change the mathematics.
"""

import contextlib
import dataclasses
import importlib
import operator
from collections.abc import Generator
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from trainers.kernels.attention import SHARE, Share, layout_name, transformers_name
from trainers.kernels.experts import use_experts
from trainers.kernels.family import family_kernels
from trainers.spec import architectures
from trainers.spec.architectures import architecture_of
from trainers.spec.architectures.with_experts import WithExperts
from trainers.spec.layout_axes import Attention, Experts
from trainers.spec.model import ModelSpec
from trainers.spec.recipe_axes import AttentionMask, BalanceLoss
from trainers.spec.support import model_refusal
from trainers.startup import import_stubs


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A model whose parameters hold no memory yet; `trainers.models.weights` fills them."""

    spec: ModelSpec
    module: PreTrainedModel
    blocks: tuple[nn.Module, ...]
    """The transformer blocks in the order they run, the units of sharding and of activation checkpointing."""
    block_names: tuple[str, ...]
    """The blocks' paths in `module`, such as "transformer.h.0"."""
    names: dict[nn.Parameter, str]
    """Name of each parameter; a tied one appears once, under its first name."""
    units: tuple[Any, ...]
    """The blocks as they run, each with its checkpoint wrapper where it has one."""

    @property
    def block_indices(self) -> tuple[int, ...]:
        """Indices of the blocks in the whole model; a pipeline's stage has some of them."""
        return tuple(int(name.rpartition(".")[2]) for name in self.block_names)

    @property
    def has_head(self) -> bool:
        """Whether it returns logits; a stage of a pipeline may not."""
        return not isinstance(self.head, PassThrough)

    @property
    def head(self) -> nn.Module:
        """The layer that computes the logits."""
        return self.module.get_submodule(architecture_of(self.spec.architecture).head)


class PassThrough(nn.Module):
    """Returns its hidden states unchanged, in place of a part of the model that another stage runs."""

    def forward(self, hidden: torch.Tensor, *_: Any) -> torch.Tensor:
        return hidden


def load_code() -> None:
    """Imports transformers' code of every architecture, which `build` otherwise does for its own."""
    with import_stubs.imports():
        for name in architectures.names():
            code = architecture_of(name).code or name
            importlib.import_module(f"transformers.models.{code}.modeling_{code}")


def build(
    spec: ModelSpec,
    *,
    attention: Attention,
    mask: AttentionMask = "causal",
    parts: int = 1,
    experts: Experts = "loop",
    balanced_tokens: int = 0,
    balance_loss: BalanceLoss = "none",
) -> Model:
    """Returns the transformers model of `spec` in fp32 and training mode, on the meta device.

    Under another `mask` than a causal one it needs a `Share` with the spans of each micro-batch, and for the queries of
    one of the `parts` of each sequence one with their positions. `balanced_tokens` is the length of sequences whose
    tokens are forced to be balanced over experts; 0 where routers choose.

    Raises:
        ValueError: transformers has no such model, or the facts and the configuration disagree on the
            number of parameters.
    """
    if reason := model_refusal(spec):
        raise ValueError(reason)
    architecture = architecture_of(spec.architecture)
    name = transformers_name(architecture.position, attention, masked=spec.window > 0 or parts > 1, mask=mask)
    with _parameters_on_meta():
        module = AutoModelForCausalLM.from_config(config_of(spec), dtype=torch.float32, attn_implementation=name)
        if spec.embedding_norm and not architecture.embedding_norm:
            _add_embedding_norm(module, spec)
    family_kernels(spec.architecture).use_attention(module, spec.num_heads, attention)
    module.train()
    names = {parameter: name for name, parameter in module.named_parameters()}
    num_parameters = sum(parameter.numel() for parameter in names)
    if num_parameters != spec.num_parameters:
        raise ValueError(
            f"{spec.name} has {num_parameters} parameters in transformers, but its facts give {spec.num_parameters}:"
            " the configuration sets something that ModelSpec does not know, or the declaration of"
            f" {spec.architecture} leaves it out"
        )
    path = architecture.blocks
    blocks = tuple(module.get_submodule(path).children())
    if isinstance(architecture, WithExperts):
        use_experts(module.config, blocks, architecture, experts, balanced_tokens, balance_loss)
    return Model(
        spec=spec,
        module=module,
        blocks=blocks,
        block_names=tuple(f"{path}.{i}" for i in range(len(blocks))),
        names=names,
        units=blocks,
    )


def set_factor(model: Model, attribute: str, value: float) -> None:
    """Sets a factor of transformers' model; `attribute` is its path, empty where the family has none."""
    path, _, name = attribute.rpartition(".")
    if name:
        setattr(operator.attrgetter(path)(model.module) if path else model.module, name, value)


def share_attention(model: Model, share: Share) -> None:
    """Makes the model compute `share` of its attention, with masks for that share."""
    architecture = architecture_of(model.spec.architecture)
    setattr(model.module.config, SHARE, share)
    for block in model.blocks:
        family_kernels(model.spec.architecture).share_attention(block.get_submodule(architecture.attention_path), share)


def _add_embedding_norm(module: PreTrainedModel, spec: ModelSpec) -> None:
    """Adds a norm of the embedding output, like the last norm, where the architecture has a place for it."""
    architecture = architecture_of(spec.architecture)
    last: Any = module.get_submodule(architecture.final_norm)
    module.set_submodule(architecture.norm_place, type(last)(spec.hidden_size, eps=last.eps))


def attention_in_effect(module: PreTrainedModel) -> str:
    """Returns the layout's word for the attention kernel that `Model.module` runs."""
    config: Any = module.config
    configured = layout_name(config._attn_implementation)
    return family_kernels(config.model_type).attention_in_effect(module, configured)


@contextlib.contextmanager
def _parameters_on_meta() -> Generator[None, None, None]:
    """Moves each parameter to the meta device as it is registered, before anything is written to it.

    `torch.device("meta")` would take the buffers too, and rotary frequencies are in no state to be drawn again.
    """

    def to_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)

    handle = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]  # may return a parameter
    try:
        yield
    finally:
        handle.remove()


def config_of(spec: ModelSpec) -> PreTrainedConfig:
    """Returns the configuration with which `build` makes the model: transformers' own, without dropout."""
    # Where sizes are all that is known, transformers' defaults hold for the rest.
    unstated = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    settings: dict[str, Any] = spec.settings if spec.config else spec.to_config() | unstated
    for key in ("model_type", "auto_map"):  # code that a file names is never run
        settings.pop(key, None)
    if {**architecture_of(spec.architecture).config_defaults, **settings}.get("head_dim", 0) is None:
        settings["head_dim"] = spec.head_dim
    if spec.architecture not in CONFIG_MAPPING:
        raise ValueError(f"transformers {transformers.__version__} has no model_type {spec.architecture}")
    config = CONFIG_MAPPING[spec.architecture](**settings)
    config.use_cache = False
    # No sequence is ever padded. A row of padding outside of the table, as some files state it, cannot be built.
    padding = getattr(config, "pad_token_id", None)
    if padding is not None and not -spec.vocab_size <= padding < spec.vocab_size:
        config.pad_token_id = None
    for key, value in architecture_of(spec.architecture).config_overrides.items():
        setattr(config, key, value)
    for key in config.to_dict():
        if key.endswith(("dropout", "pdrop")):
            setattr(config, key, 0.0)
    return config
