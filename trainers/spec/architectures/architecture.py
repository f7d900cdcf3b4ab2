"""`Architecture`: all that this project knows of one family of decoder-only transformers. Without torch."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from trainers.spec.model_sizes import ModelSizes

Position = Literal["alibi", "learned", "rotary"]
QueryKeyNorm = Literal["none", "head", "all heads"]
Cutting = Literal["colwise", "rowwise"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SlidingWindow:
    """A sliding window of attention, and the blocks that have it."""

    size: int = 0
    """Tokens that a query sees, its own among them; 0 for all before it."""
    num_layers: int = 0
    """Blocks with the window; the others see all tokens before a query."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepwiseActivation:
    """An activation that transformers computes in several element-wise kernels: their costs by value of inner width, in
    values of two bytes. `tests/cost_model/test_stepwise_activations.py` counts them.
    """

    forward_accesses: float
    """Values read and written in the forward pass."""
    backward_accesses: float
    """Values read and written in the backward pass."""
    saved_tensors: float
    """Tensors of inner width that autograd saves, input and output of the activation included."""
    takes_power: bool = False
    """Whether it takes a power, which autocast computes in fp32, with all that follows."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Architecture:
    """The declaration of one family, by what transformers' modules of it are.

    A family that counts its parameters otherwise, or whose attention modules are replaced, overrides a method.
    """

    name: str
    """Value of `ModelSpec.architecture`: the `model_type` of transformers."""
    position: Position
    """Kind of positions in attention: a bias by distance, a learned table, or rotated queries and keys."""
    rotary_share: float | None = None
    """Share of a head that is turned where `config.json` states none; None where it always is the whole."""
    norm_vectors: int
    """Vectors of length `hidden_size` in a norm: 2 (weight and bias) or 1 (RMS)."""
    bias: bool
    """Whether the linear layers of a block have a bias."""
    gated: bool
    """Whether the feed-forward block has three matrices in place of two."""
    tied: bool
    """Whether head and input embedding share one matrix unless stated otherwise."""
    embedding_norm: bool
    """Whether a norm follows the input embedding."""
    query_key_value_bias: bool = False
    """Whether the linear layers of queries, keys and values have a bias where the others have none."""
    output_bias: bool = True
    """Whether attention's output layer has a bias too where `ModelSpec.attention_bias` asks for biases."""
    query_key_norm: QueryKeyNorm = "none"
    """The RMSNorms of queries and keys: of each head by itself, of all heads as one vector, or none."""
    attention_sinks: bool = False
    """Whether each head has a learned score beside those of its keys, to which no value belongs: a softmax over both
    gives the keys less than 1 together."""
    block_norms: int = 2
    """Norms of `hidden_size` in a block."""
    norm_start: float = 1.0
    """First value of a norm's weight: 0 where the norm multiplies by one plus its weight."""
    learned_numbers: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    """Parameters of one number in a block, outside of its layers and norms: their first values, by path in the block.
    """

    config_keys: Mapping[str, tuple[str, ...]]
    """The keys of `config.json` for each field of `ModelSpec`, the preferred first. A field without a key cannot be
    chosen: `ffn_size` is then 4 x hidden_size, and `num_kv_heads` the number of heads."""
    counted_with: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """Keys of `config.json` that add or remove parameters, with the value that the parameter count assumes."""
    quantized_files: tuple[str, ...] = ()
    """Values of `quant_method` in the `quantization_config` of published files that state how weights are stored and
    nothing of the model."""
    trained_with: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """Keys of `config.json` that change the mathematics, with the one value that is trained here."""
    config_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """Defaults of transformers for keys of `config.json` that are left out, where sizes follow from them."""
    config_overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """Attributes of transformers' configuration with the value that training needs, whatever `config.json` says."""

    embeddings: tuple[str, ...]
    """Paths of the modules before the blocks that have parameters, or may have, the token embedding first."""
    blocks: str
    """Path of the list of blocks."""
    final_norm: str
    """Path of the norm after the last block."""
    head: str
    """Path of the layer that gives the logits."""
    stored_as: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    stored_in_parts: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict[str, tuple[str, ...]])
    """The ends of the tensors that files have instead of a parameter, joined by rows, by the end of its name; with
    `{expert}` those of one expert."""
    """Names that files of weights have for parameters which transformers renames as it reads and writes them."""

    tensor_parallel: Mapping[str, Cutting]
    """Cut of each linear layer of a block under tensor parallelism, by its path in it: "colwise" by outputs, "rowwise"
    by inputs, the words of transformers' own tables. Attention's layers stand first. A module that stands around a
    "colwise" layer takes hidden states as its first argument."""
    stacked: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    """The "colwise" layers whose outputs are several matrices one after another, with their number: a rank has its part
    of each."""
    tensor_parallel_refusal: str = ""
    """Reason why tensor parallelism cannot cut the blocks, as the first part of a sentence; empty where it can."""
    float8_refusal: str = ""
    """Reason why a block's linear layers cannot be in FP8, as the first part of a sentence; empty where they can."""
    head_sizes: tuple[str, ...] = ()
    """Attributes of attention that count heads, or values of all heads: a rank has its part."""
    norm_place: str = ""
    """Path of the module in whose place a norm of what is embedded stands where `ModelSpec.embedding_norm` asks for one
    that transformers' model lacks; empty where there is no such place."""

    embedding_factor: str = ""
    """Attribute of transformers' model with the factor of what is embedded; empty where none is outside of the table.
    """
    logit_factor: str = ""
    """Attribute of transformers' model with the factor or the divisor of the logits; empty where there is none."""

    kernels: str = ""
    """The module of `trainers.kernels` whose `KERNELS` stand in for modules of transformers; empty where none do."""
    code: str = ""
    """The module of `transformers.models` that has its code, where it is not called `name`."""
    fp32_softmax: bool = True
    """Whether transformers' eager attention computes the softmax in fp32, else in the type of the scores."""
    fused_mlp: Mapping[str, tuple[Any, ...]] | None = None
    """Keys of `config.json` with the values, the default first, under which a feed-forward block is GELU by a tangent
    between two products with biases; None where `fuse_mlp` has no kernel for it."""
    stepwise_activation: StepwiseActivation | None = None
    """The costs of an activation that is computed step by step; None where it is one kernel."""

    def linear_layers(self, spec: ModelSizes) -> dict[str, tuple[int, int]]:
        """Returns (outputs, inputs) of each linear layer of a block, by its path in it; experts, which are stacks of
        matrices, and what stands beside them are none.
        """
        hidden, width, kv_width = spec.hidden_size, spec.attention_width, spec.num_kv_heads * spec.head_dim
        inside = f"{self.attention_path}."
        outer = [path for path, cut in self.tensor_parallel.items() if cut == "colwise"]
        of_attention = [path for path in outer if path.startswith(inside)]
        inner = (2 if self.gated else 1) * spec.ffn_size // max(1, len(outer) - len(of_attention))
        sizes: dict[str, tuple[int, int]] = {}
        for path, cut in self.tensor_parallel.items():
            if path.startswith(inside):
                heads = width if path == of_attention[0] else kv_width
                heads = heads if len(of_attention) > 1 else width + 2 * kv_width
                sizes[path] = (heads, hidden) if cut == "colwise" else (hidden, width)
            else:
                sizes[path] = (inner, hidden) if cut == "colwise" else (hidden, spec.ffn_size)
        return sizes

    def vector_start(self, name: str) -> float:
        """Returns the first value of the vector called `name` in the model, a norm's weight or a learned number."""
        return next(
            (value for path, value in self.learned_numbers.items() if name.endswith(f".{path}")), self.norm_start
        )

    @property
    def attention_path(self) -> str:
        """Returns the path of attention in a block."""
        return next(iter(self.tensor_parallel)).rpartition(".")[0]

    @property
    def softcap_key(self) -> str:
        """Returns the key of `config.json` that bounds the logits."""
        return self.config_keys["logit_softcap"][0]

    def matrices_per_layer(self, spec: ModelSizes) -> int:
        """Returns the number of a block's parameters that take part in matrix products: no norms and no biases."""
        h, width, kv, ffn = spec.hidden_size, spec.attention_width, spec.num_kv_heads * spec.head_dim, spec.ffn_size
        return h * width + 2 * h * kv + width * h + (3 if self.gated else 2) * h * ffn

    def parameters_per_layer(self, spec: ModelSizes) -> int:
        """Returns the exact number of parameters of one block."""
        h, width, kv, ffn = spec.hidden_size, spec.attention_width, spec.num_kv_heads * spec.head_dim, spec.ffn_size
        biases = (width + 2 * kv + h + ffn + h) if self.bias else 0
        biases += width + 2 * kv if self.query_key_value_bias else 0
        biases += width + 2 * kv + (h if self.output_bias else 0) if spec.attention_bias else 0
        biases += (2 if self.gated else 1) * ffn + h if spec.mlp_bias else 0
        query_key_norms = {"none": 0, "head": 2 * spec.head_dim, "all heads": width + kv}[self.query_key_norm]
        query_key_norms += width + kv if spec.head_norms else 0
        norms = (self.block_norms - spec.parallel_residual) * self.norm_vectors * h
        sinks = spec.num_heads if self.attention_sinks else 0
        vectors = biases + query_key_norms + norms + sinks + len(self.learned_numbers)
        return self.matrices_per_layer(spec) + vectors

    def embedding_parameters(self, spec: ModelSizes) -> int:
        """Returns the exact number of parameters outside blocks: embeddings, positions, head, first and last norm."""
        h = spec.hidden_size
        tables = spec.vocab_size * h * (1 if spec.tied_embeddings else 2)
        positions = spec.max_positions * h if self.position == "learned" else 0
        norms = self.norm_vectors * h * (2 if spec.embedding_norm else 1)
        return tables + positions + norms

    def tensor_parallel_reason(self, spec: ModelSizes) -> str:
        """Returns `tensor_parallel_refusal`, or what `spec` has that tensor parallelism cannot cut."""
        if spec.head_norms and not self.tensor_parallel_refusal:
            return f"{spec.name} norms each head by a module of its own ({self.config_keys['head_norms'][0]})"
        return self.tensor_parallel_refusal

    def window(self, config: Mapping[str, Any], num_layers: int) -> SlidingWindow:
        """Returns the sliding window of `config.json`; families of `trainers.spec.architectures.windows` have one."""
        return SlidingWindow()

    def window_config(self, spec: ModelSizes) -> dict[str, Any]:
        """Returns the keys of `config.json` that give a model the window of `spec`."""
        return {}

    def has_fused_mlp(self, config: Mapping[str, Any]) -> bool:
        """Returns whether `fuse_mlp` computes what a model of this `config.json` does."""
        return self.fused_mlp is not None and all(
            config.get(key, values[0]) in values for key, values in self.fused_mlp.items()
        )
