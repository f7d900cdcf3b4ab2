"""Builds a transformers model from a `ModelSpec`: parameters on the meta device, real buffers, dropout off.

Dropout is off whatever the configuration says: its mask would depend on how the batch is divided over ranks and
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
    """The transformer blocks in order: the units of sharding and of activation checkpointing."""
    block_names: tuple[str, ...]
    """The blocks' paths in `module`, such as "transformer.h.0"."""
    names: dict[nn.Parameter, str]
    """Name of each parameter; a tied one appears once, under its first name."""
    units: tuple[Any, ...]
    """The blocks as they run, with their checkpoint wrappers."""

    @property
    def block_indices(self) -> tuple[int, ...]:
        """Indices of the blocks in the whole model; a pipeline stage has some of them."""
        return tuple(int(name.rpartition(".")[2]) for name in self.block_names)

    @property
    def has_head(self) -> bool:
        """Whether the model returns logits; a pipeline stage may not."""
        return not isinstance(self.head, PassThrough)

    @property
    def head(self) -> nn.Module:
        return self.module.get_submodule(architecture_of(self.spec.architecture).head)


class PassThrough(nn.Module):
    """Returns hidden states unchanged; replaces a part of the model that another stage runs."""

    def forward(self, hidden: torch.Tensor, *_: Any) -> torch.Tensor:
        return hidden


def load_code() -> None:
    """Imports transformers' code of every architecture in advance; `build` imports only its own."""
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

    Under a `mask` other than causal it needs a `Share` with the spans of each micro-batch; with `parts` above 1
    (queries cut over ranks) a `Share` with their positions. `balanced_tokens` is the length of sequences whose tokens
    are forced to be balanced over experts, 0 if routers choose.

    Raises:
        ValueError: transformers has no such model, or its number of parameters differs from the spec's.
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


def drop_factor(model: Model, attribute: str) -> None:
    """Sets a factor of transformers' model at the path `attribute` to 1; does nothing if the path is empty."""
    path, _, name = attribute.rpartition(".")
    if name:
        setattr(operator.attrgetter(path)(model.module) if path else model.module, name, 1.0)


def share_attention(model: Model, share: Share) -> None:
    """Makes the model compute only `share` of its attention, with masks for that share."""
    architecture = architecture_of(model.spec.architecture)
    setattr(model.module.config, SHARE, share)
    for block in model.blocks:
        family_kernels(model.spec.architecture).share_attention(block.get_submodule(architecture.attention_path), share)


def _add_embedding_norm(module: PreTrainedModel, spec: ModelSpec) -> None:
    """Adds a norm of the embedding output, like the last norm, at the architecture's place for it."""
    architecture = architecture_of(spec.architecture)
    last: Any = module.get_submodule(architecture.final_norm)
    module.set_submodule(architecture.norm_place, type(last)(spec.hidden_size, eps=last.eps))


def attention_in_effect(module: PreTrainedModel) -> str:
    """Returns the layout's name of the attention kernel that `Model.module` runs."""
    config: Any = module.config
    configured = layout_name(config._attn_implementation)
    return family_kernels(config.model_type).attention_in_effect(module, configured)


@contextlib.contextmanager
def _parameters_on_meta() -> Generator[None, None, None]:
    """Moves each parameter to the meta device when it is registered, before values are written.

    `torch.device("meta")` would affect buffers too, and rotary frequencies cannot be recomputed afterwards.
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
    """Returns the configuration from which `build` makes the model: transformers' own, without dropout."""
    # If only the sizes are known, transformers' defaults hold for everything else.
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
    # Sequences are never padded, and a padding row outside the table, as some files state, would make the build fail.
    padding = getattr(config, "pad_token_id", None)
    if padding is not None and not -spec.vocab_size <= padding < spec.vocab_size:
        config.pad_token_id = None
    for key, value in architecture_of(spec.architecture).config_overrides.items():
        setattr(config, key, value)
    for key in config.to_dict():
        if key.endswith(("dropout", "pdrop")):
            setattr(config, key, 0.0)
    return config
