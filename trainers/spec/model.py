"""`ModelSpec`: the architecture's facts from which parameters, FLOPs and the transformers configuration follow."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from trainers.spec import rotary
from trainers.spec.architectures import architecture_of
from trainers.spec.architectures.architecture import Position
from trainers.spec.blocks import BlockKind, blocks_of
from trainers.spec.codec import json_object, shortened
from trainers.spec.model_config import check_rest, family_of, fields_of, text_model, trained_in
from trainers.spec.model_sizes import MULTIPLIERS, SWITCHES, ModelSizes

Number = TypeVar("Number", int, float)
FlopsConvention = Literal["products", "6n", "8n", "palm", "megatron_model", "megatron_hardware"]

EXPERT_SIZES = ("num_experts", "experts_per_token", "shared_ffn_size")
_OPTIONAL = ("max_positions", "logit_softcap", "head_width", *EXPERT_SIZES, *SWITCHES, *MULTIPLIERS)
"""Fields left out of a `config.json` if they are 0 or false."""
LARGEST_SIZE = 10**9
"""Largest size of any model; products of larger sizes would exceed 64 bits."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec(ModelSizes):
    """A decoder-only transformer, by its architecture and sizes. Fields that are not set take the architecture's
    values.

    Raises:
        ValueError: a size is out of range, heads do not divide the hidden size, or the architecture is unknown or lacks
            a stated feature.
    """

    def __post_init__(self) -> None:
        family = architecture_of(self.architecture)
        for field in (
            "num_layers",
            "hidden_size",
            "num_heads",
            "vocab_size",
            "max_positions",
            "ffn_size",
            "num_kv_heads",
            *EXPERT_SIZES,
        ):
            if type(getattr(self, field)) is not int:  # a space file is written by the user, so types are unchecked
                raise ValueError(
                    f"{field} of {self.name} must be a whole number, got {shortened(getattr(self, field))}"
                )
        defaults = {
            "ffn_size": self.ffn_size or 4 * self.hidden_size,
            "num_kv_heads": self.num_kv_heads or self.num_heads,
            "tied_embeddings": family.tied if self.tied_embeddings is None else self.tied_embeddings,
            "embedding_norm": family.embedding_norm if self.embedding_norm is None else self.embedding_norm,
        }
        for field in MULTIPLIERS:
            if field in family.config_keys:
                defaults[field] = getattr(self, field) or family.config_defaults.get(field, 1.0)
            elif getattr(self, field):
                raise ValueError(f"{self.name}, a {self.architecture}, cannot have {field} {getattr(self, field)}")
        for field, value in defaults.items():
            object.__setattr__(self, field, value)
        for field in ("num_layers", "hidden_size", "num_heads", "vocab_size", "ffn_size", "num_kv_heads"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} of {self.name} must be at least 1, got {getattr(self, field)}")
            if getattr(self, field) > LARGEST_SIZE:
                raise ValueError(f"{field} of {self.name} must be at most 10^9, got {shortened(getattr(self, field))}")
        if not 0 <= self.max_positions <= LARGEST_SIZE:
            raise ValueError(f"max_positions of {self.name} must lie in [0, 10^9], got {shortened(self.max_positions)}")
        if not 0 < self.init_std < math.inf:
            raise ValueError(f"init_std of {self.name} must be a finite number above 0, got {self.init_std}")
        if not 0 <= self.head_width <= LARGEST_SIZE:
            raise ValueError(f"head_width of {self.name} must lie in [0, 10^9], got {shortened(self.head_width)}")
        if self.head_width * self.num_heads == self.hidden_size:
            object.__setattr__(self, "head_width", 0)
        if not 0 <= self.window_layers <= self.num_layers or (self.window > 0) != (self.window_layers > 0):
            raise ValueError(
                f"a window of {self.name} needs a length above 0 and 1 to {self.num_layers} blocks, got"
                f" {shortened(self.window)} tokens in {shortened(self.window_layers)} blocks"
            )
        self._check_experts()
        if not 0 <= self.logit_softcap < math.inf:
            raise ValueError(
                f"logit_softcap of {self.name} must be a finite number of at least 0, got {self.logit_softcap}"
            )
        for field in MULTIPLIERS:
            if not 0 <= getattr(self, field) < math.inf:
                raise ValueError(f"{field} of {self.name} must be a finite number above 0, got {getattr(self, field)}")
        try:
            _ = self.settings
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"config of {self.name} must be a JSON object as text: {error}") from error
        for field in SWITCHES:
            if getattr(self, field) not in ((False, True) if field in family.config_keys else (False,)):
                raise ValueError(
                    f"{self.name}, a {self.architecture}, cannot have {field} {shortened(getattr(self, field))}"
                )
        if self.hidden_size % self.num_heads and not self.head_width:
            raise ValueError(
                f"hidden_size {self.hidden_size} of {self.name} is not a multiple of its {self.num_heads} heads"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} heads of {self.name} are not a multiple of its {self.num_kv_heads} key/value heads"
            )
        if family.position == "learned" and self.max_positions < 1:
            raise ValueError(f"{self.name} has learned positions: max_positions must be at least 1")

    def _check_experts(self) -> None:
        num_experts, chosen = self.num_experts, self.experts_per_token
        is_shared = "shared_ffn_size" in architecture_of(self.architecture).config_keys
        if not is_shared <= self.shared_ffn_size <= LARGEST_SIZE * is_shared:
            bounds = "in [1, 10^9]" if is_shared else "0"
            raise ValueError(
                f"shared_ffn_size of {self.name}, a {self.architecture}, must be {bounds}, got"
                f" {shortened(self.shared_ffn_size)}"
            )
        if "num_experts" not in architecture_of(self.architecture).config_keys:
            if num_experts or chosen:
                raise ValueError(
                    f"{self.name}, a {self.architecture}, cannot have experts, got {shortened(num_experts)} of which a"
                    f" token takes {shortened(chosen)}"
                )
        elif not 1 <= chosen <= num_experts <= LARGEST_SIZE:
            keys = architecture_of(self.architecture).config_keys
            raise ValueError(
                f"{self.name} needs 1 to 10^9 experts ({keys['num_experts'][0]}), of which a token takes 1 to all"
                f" ({keys['experts_per_token'][0]}), got {shortened(chosen)} of {shortened(num_experts)}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The parsed text of its config.json; empty if only its sizes are known."""
        return json_object(self.config) if self.config else {}

    @property
    def position(self) -> Position:
        return architecture_of(self.architecture).position

    @property
    def made_for(self) -> int:
        """Sequence length that its positions are made for, 0 if unknown: the length that rotary positions are stretched
        to, or the rows of a learned table.
        """
        return rotary.made_for(self.settings, self.max_positions) if self.position == "rotary" else self.max_positions

    def vector_start(self, name: str) -> float:
        """Returns the initial value of the vector called `name`, a norm's weight or a learned number."""
        return architecture_of(self.architecture).vector_start(name)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward block has three matrices (with a gate) instead of two."""
        return architecture_of(self.architecture).gated

    @property
    def blocks(self) -> tuple[tuple[BlockKind, int], ...]:
        return blocks_of(self)

    def over_blocks(self, ask: Callable[[BlockKind], Number]) -> Number:
        """Returns the sum of `ask` over all blocks; it is called once per kind."""
        return sum(count * ask(kind) for kind, count in self.blocks)  # type: ignore[return-value]

    @property
    def parameters_per_layer(self) -> int:
        """Exact number of parameters of its largest block."""
        return max(kind.parameters(self) for kind, _ in self.blocks)

    def keys_per_query(self, seq_len: int) -> float:
        """Returns the number of keys that a query attends to, averaged over a sequence of `seq_len` and over all
        blocks.
        """
        return self.over_blocks(lambda kind: kind.keys_per_query(self, seq_len)) / self.num_layers

    @property
    def embedding_parameters(self) -> int:
        return architecture_of(self.architecture).embedding_parameters(self)

    @property
    def num_parameters(self) -> int:
        """Exact number of parameters; tied ones count once."""
        return self.embedding_parameters + self.over_blocks(lambda kind: kind.parameters(self))

    @property
    def active_parameters(self) -> int:
        """Number of parameters used for one token: all except parameters of experts that its router did not choose."""
        return self.embedding_parameters + self.over_blocks(lambda kind: kind.active_parameters(self))

    @property
    def product_parameters(self) -> int:
        """Number of parameters in one token's matrix products: the blocks' linear layers, the chosen experts and the
        head. Embedding tables, norms and biases are excluded.
        """
        return self.over_blocks(lambda kind: kind.product_parameters(self)) + self.vocab_size * self.hidden_size

    def flops_per_token(
        self, seq_len: int, convention: FlopsConvention = "products", *, keys_per_query: float | None = None
    ) -> float:
        """Returns the FLOPs of forward and backward pass for one token of a sequence of `seq_len`, by a named
        convention.
        - "products": 6 P + 6 L h s, this project's own: the FLOPs of matrix products, P the parameters in them
          (`product_parameters`), h the width of all heads. Attention counts only the lower triangle, and of it only
          keys within a sliding window. `keys_per_query` replaces s / 2 if the recipe's mask leaves another number.
        - "6n": 6 N, N all parameters, of experts only the chosen ones (Kaplan et al. 2020, arXiv 2001.08361, section
          2.1).
        - "8n": 8 N, with the second forward pass of full checkpointing (BigScience's `$ms*4*2*...`).
        - "palm": 6 N + 12 L h s (PaLM, arXiv 2204.02311, appendix B), h as in "products".
        - "megatron_hardware": 96 L h^2 (1 + s/6h + V/16Lh), with recomputation (arXiv 2104.04473, section 5.1).
        - "megatron_model": 72 L h^2 (1 + s/6h + V/12Lh), the same without recomputation.
        """
        n, h, s = self.active_parameters, self.hidden_size, seq_len
        layers, vocab, width = self.num_layers, self.vocab_size, self.attention_width
        match convention:
            case "products":
                attention = 12.0 * layers * width * (keys_per_query or self.keys_per_query(s))
                return 6.0 * self.product_parameters + attention
            case "6n":
                return 6.0 * n
            case "8n":
                return 8.0 * n
            case "palm":
                return 6.0 * n + 12.0 * layers * width * s
            case "megatron_hardware":
                return 96.0 * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
            case "megatron_model":
                return 72.0 * layers * h * h * (1 + s / (6 * h) + vocab / (12 * layers * h))

    def hardware_flops_per_token(self, seq_len: int, checkpointing: str, *, keys_per_query: float) -> float:
        """Returns the least FLOPs that a device performs for one token: "products", plus the repeated forward pass of
        checkpointed blocks.

        The last product of a block is not repeated, because the backward pass does not need its output
        (torch.utils.checkpoint.set_checkpoint_early_stop).
        """
        model = self.flops_per_token(seq_len, "products", keys_per_query=keys_per_query)
        interval = {"full": 1, "every_2": 2, "every_4": 4}.get(checkpointing)
        if interval is None:
            return model
        num_recomputed = -(-self.num_layers // interval)
        core = 2 * self.attention_width * keys_per_query
        repeated = self.over_blocks(lambda kind: kind.product_parameters(self) - kind.last_product(self))
        return model + 2.0 * num_recomputed * (repeated / self.num_layers + core)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, name: str) -> "ModelSpec":
        """Returns the spec of a transformers `config.json`, given as a mapping.

        Raises:
            ValueError: the model type is unknown, a needed size is missing, or a key asks for parameters that this
                project does not count.
        """
        config = text_model(config, name)
        family = family_of(config, name)
        config = trained_in(config, family)
        fields = fields_of(config, family, name)
        spec = cls(name=name, architecture=family.name, config=json.dumps(config, sort_keys=True), **fields)
        check_rest(config, family, name, head_dim=spec.head_dim)
        return spec

    def to_config(self) -> dict[str, Any]:
        """Returns a `config.json` that `from_config` reads as this model."""
        family = architecture_of(self.architecture)
        stated: dict[str, Any] = {}
        for field, (key, *_) in family.config_keys.items():
            value = getattr(self, field)
            if field == "head_width" and key in family.config_defaults:
                value = self.head_dim
            # A key that is left out has transformers' default.
            if value or key in family.config_defaults or field not in _OPTIONAL:
                stated[key] = value
        return {"model_type": self.architecture, **stated, **family.window_config(self)}
