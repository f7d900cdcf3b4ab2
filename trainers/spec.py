"""`ModelSpec`: the architecture facts from which parameters, FLOPs and the transformers configuration follow."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from trainers.codec import shortened

Architecture = Literal["bloom", "gpt2", "gpt_neox", "llama"]
FlopsConvention = Literal["6n", "8n", "6n_causal", "palm", "megatron_model", "megatron_hardware"]


LARGEST_SIZE = 10**9
"""No architecture has a larger size; above it products of sizes would leave what 64 bits hold."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Family:
    position: str
    """How a token knows its place: "alibi", "learned" or "rotary"."""
    norm_vectors: int
    """Vectors of length `hidden_size` a norm holds: 2 (weight and bias) or 1 (RMS)."""
    bias: bool
    """Whether the linear layers of a block carry a bias."""
    gated: bool
    """Whether the feed-forward block has a gate (three matrices in place of two)."""
    tied: bool
    """Whether head and input embedding share one matrix unless said otherwise."""
    embedding_norm: bool
    """Whether a norm follows the input embedding."""


_FAMILIES: dict[str, _Family] = {
    "bloom": _Family(position="alibi", norm_vectors=2, bias=True, gated=False, tied=True, embedding_norm=True),
    "gpt2": _Family(position="learned", norm_vectors=2, bias=True, gated=False, tied=True, embedding_norm=False),
    "gpt_neox": _Family(position="rotary", norm_vectors=2, bias=True, gated=False, tied=False, embedding_norm=False),
    "llama": _Family(position="rotary", norm_vectors=1, bias=False, gated=True, tied=False, embedding_norm=False),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A decoder-only transformer, by its architecture facts. Unset facts take the family's own values.

    Raises:
        ValueError: a size is not positive, heads do not divide the hidden size, or the family is unknown.
    """

    name: str = dataclasses.field(metadata={"cosmetic": True})
    """What people call it, as in "bloom-7b1"."""
    architecture: Architecture
    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    ffn_size: int = 0
    """Width of the feed-forward block; 0 stands for 4 x hidden_size."""
    num_kv_heads: int = 0
    """Key/value heads; 0 stands for num_heads."""
    max_positions: int = 0
    """Rows of the learned position table (gpt2); for the others a bound on the sequence length, 0 for none."""
    tied_embeddings: bool | None = None
    embedding_norm: bool | None = None
    init_std: float = 0.02
    config: str = ""
    """The user's config.json as canonical JSON where the model came from one, else empty."""
    miniature_of: str | None = None
    """Name of the model that this one stands in for where no GPU is at hand."""

    def __post_init__(self) -> None:
        if self.architecture not in get_args(Architecture):
            known = ", ".join(get_args(Architecture))
            raise ValueError(f"unknown architecture {self.architecture!r}: this project knows {known}")
        family = _FAMILIES[self.architecture]
        defaults = {
            "ffn_size": self.ffn_size or 4 * self.hidden_size,
            "num_kv_heads": self.num_kv_heads or self.num_heads,
            "tied_embeddings": family.tied if self.tied_embeddings is None else self.tied_embeddings,
            "embedding_norm": family.embedding_norm if self.embedding_norm is None else self.embedding_norm,
        }
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
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} of {self.name} is not a multiple of its {self.num_heads} heads"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} heads of {self.name} are not a multiple of its {self.num_kv_heads} key/value heads"
            )
        if family.position == "learned" and self.max_positions < 1:
            raise ValueError(f"{self.name} has learned positions: max_positions must be at least 1")

    @property
    def position(self) -> str:
        """How a token knows its place: "alibi", "learned" or "rotary"."""
        return _FAMILIES[self.architecture].position

    @property
    def gated(self) -> bool:
        """Whether the feed-forward block has three matrices in place of two."""
        return _FAMILIES[self.architecture].gated

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def parameters_per_layer(self) -> int:
        """Exact number of parameters of one block."""
        family = _FAMILIES[self.architecture]
        h, kv = self.hidden_size, self.num_kv_heads * self.head_dim
        attention = h * h + 2 * h * kv + h * h
        mlp = (3 if family.gated else 2) * h * self.ffn_size
        biases = (h + 2 * kv + h + self.ffn_size + h) if family.bias else 0
        return attention + mlp + biases + 2 * family.norm_vectors * h

    @property
    def embedding_parameters(self) -> int:
        """Parameters outside the blocks: embeddings, positions, head, first and last norm."""
        family = _FAMILIES[self.architecture]
        h = self.hidden_size
        tables = self.vocab_size * h * (1 if self.tied_embeddings else 2)
        positions = self.max_positions * h if family.position == "learned" else 0
        norms = family.norm_vectors * h * (2 if self.embedding_norm else 1)
        return tables + positions + norms

    @property
    def num_parameters(self) -> int:
        """Exact number of parameters, tied ones counted once."""
        return self.embedding_parameters + self.num_layers * self.parameters_per_layer

    def flops_per_token(self, seq_len: int, convention: FlopsConvention = "6n_causal") -> float:
        """FLOPs of forward and backward for one token of a sequence of `seq_len`, by a named convention.

        - "6n": 6 N, N all parameters (Kaplan et al. 2020, arXiv 2001.08361, section 2.1).
        - "8n": 8 N, the forward pass done twice under full checkpointing (BigScience's `$ms*4*2*...`).
        - "6n_causal": 6 N + 6 L h s: only the lower triangle of attention counts. The project's own.
        - "palm": 6 N + 12 L h s (PaLM, arXiv 2204.02311, appendix B).
        - "megatron_hardware": 96 L h^2 (1 + s/6h + V/16Lh), recomputation counted (arXiv 2104.04473, section 5.1).
        - "megatron_model": 72 L h^2 (1 + s/6h + V/12Lh), the same without recomputation.
        """
        n, h, s = self.num_parameters, self.hidden_size, seq_len
        layers, vocab = self.num_layers, self.vocab_size
        match convention:
            case "6n":
                return 6.0 * n
            case "8n":
                return 8.0 * n
            case "6n_causal":
                return 6.0 * n + 6.0 * layers * h * s
            case "palm":
                return 6.0 * n + 12.0 * layers * h * s
            case "megatron_hardware":
                return 96.0 * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
            case "megatron_model":
                return 72.0 * layers * h * h * (1 + s / (6 * h) + vocab / (12 * layers * h))

    def hardware_flops_per_token(self, seq_len: int, checkpointing: str) -> float:
        """FLOPs the device does for one token: "6n_causal" plus the forward pass again of checkpointed blocks."""
        model = self.flops_per_token(seq_len, "6n_causal")
        every = {"full": 1, "every_2": 2, "every_4": 4}.get(checkpointing)
        if every is None:
            return model
        again = -(-self.num_layers // every)
        return model + 2.0 * again * (self.parameters_per_layer + self.hidden_size * seq_len)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, name: str) -> "ModelSpec":
        """The spec of a transformers `config.json`, given as a mapping.

        Raises:
            ValueError: a model type the project does not know, a needed size is missing, or a field asks for parameters
                that this project does not count.
        """
        kind = config.get("model_type")
        keys = _CONFIG_KEYS.get(str(kind))
        if keys is None:
            known = ", ".join(_CONFIG_KEYS)
            raise ValueError(f"model_type {kind!r} of {name} is not known: this project trains {known}")
        found: dict[str, Any] = {}
        for field, spellings in keys.items():
            value = next((config[key] for key in spellings if config.get(key) is not None), None)
            if value is not None:
                found[field] = value
        missing = [
            f"{field} ({' or '.join(keys[field])})"
            for field in ("num_layers", "hidden_size", "num_heads", "vocab_size")
            if field not in found
        ]
        if missing:
            raise ValueError(f"the configuration of {name} lacks {', '.join(missing)}")
        wrong = [field for field, value in found.items() if field in _INTEGERS and type(value) is not int]
        if wrong:
            raise ValueError(f"the configuration of {name} wants whole numbers for {', '.join(wrong)}")
        if type(found.get("init_std", 0.0)) not in (int, float):
            raise ValueError(f"the configuration of {name} wants a number for init_std, got {found['init_std']!r}")
        if type(found.get("tied_embeddings", False)) is not bool:
            raise ValueError(f"the configuration of {name} wants true or false for tied_embeddings")
        spec = cls(name=name, architecture=kind, config=json.dumps(config, sort_keys=True), **found)  # type: ignore[arg-type]
        for field, counted in {**_COUNTED_WITH[spec.architecture], "head_dim": spec.head_dim}.items():
            if config.get(field, counted) not in (None, counted):
                raise ValueError(
                    f"{field} of {name} must be {counted} or left out, got {config[field]}: this project counts the"
                    f" parameters of a {kind} with {counted} only"
                )
        return spec

    def to_config(self) -> dict[str, Any]:
        """The `config.json` of a model of these sizes: what `from_config` reads."""
        values = {field: getattr(self, field) for field in _CONFIG_KEYS[self.architecture]}
        if not self.max_positions:
            values.pop("max_positions", None)
        keys = _CONFIG_KEYS[self.architecture]
        return {"model_type": self.architecture, **{keys[field][0]: value for field, value in values.items()}}


_INTEGERS = ("num_layers", "hidden_size", "num_heads", "vocab_size", "ffn_size", "num_kv_heads", "max_positions")

_COUNTED_WITH: dict[str, dict[str, bool]] = {
    "bloom": {},
    "gpt2": {"add_cross_attention": False},
    "gpt_neox": {"attention_bias": True},
    "llama": {"attention_bias": False, "mlp_bias": False},
}
"""Fields of a `config.json` that add parameters or take them away, with the value that `ModelSpec` counts for."""

_CONFIG_KEYS: dict[str, dict[str, tuple[str, ...]]] = {
    "bloom": {
        "num_layers": ("n_layer", "num_hidden_layers"),
        "hidden_size": ("hidden_size", "n_embed"),
        "num_heads": ("n_head", "num_attention_heads"),
        "vocab_size": ("vocab_size",),
        "init_std": ("initializer_range",),
        "tied_embeddings": ("tie_word_embeddings",),
    },
    "gpt2": {
        "num_layers": ("n_layer", "num_hidden_layers"),
        "hidden_size": ("n_embd", "hidden_size"),
        "num_heads": ("n_head", "num_attention_heads"),
        "vocab_size": ("vocab_size",),
        "ffn_size": ("n_inner",),
        "max_positions": ("n_positions", "max_position_embeddings"),
        "init_std": ("initializer_range",),
        "tied_embeddings": ("tie_word_embeddings",),
    },
    "gpt_neox": {
        "num_layers": ("num_hidden_layers",),
        "hidden_size": ("hidden_size",),
        "num_heads": ("num_attention_heads",),
        "vocab_size": ("vocab_size",),
        "ffn_size": ("intermediate_size",),
        "max_positions": ("max_position_embeddings",),
        "init_std": ("initializer_range",),
        "tied_embeddings": ("tie_word_embeddings",),
    },
    "llama": {
        "num_layers": ("num_hidden_layers",),
        "hidden_size": ("hidden_size",),
        "num_heads": ("num_attention_heads",),
        "vocab_size": ("vocab_size",),
        "ffn_size": ("intermediate_size",),
        "num_kv_heads": ("num_key_value_heads",),
        "max_positions": ("max_position_embeddings",),
        "init_std": ("initializer_range",),
        "tied_embeddings": ("tie_word_embeddings",),
    },
}
