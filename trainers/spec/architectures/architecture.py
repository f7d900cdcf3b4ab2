"""`Architecture`: the facts of one family of decoder-only transformers. Imports no torch."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from trainers.spec.codec import shortened
from trainers.spec.model_sizes import ModelSizes

LOCAL, GLOBAL = "sliding_attention", "full_attention"
"""Names in transformers' `layer_types` for blocks with a window and for blocks without."""
Position = Literal["alibi", "learned", "rotary"]
QueryKeyNorm = Literal["none", "head", "all heads"]
Cutting = Literal["colwise", "rowwise"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SlidingWindow:
    """A sliding window of attention, and the number of blocks that have it."""

    size: int = 0
    """Number of tokens that a query attends to, itself included; 0 for all tokens before it."""
    num_layers: int = 0
    """Number of blocks with the window; queries of other blocks attend to all tokens before them."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepwiseActivation:
    """Costs of an activation that transformers computes in several element-wise kernels, per value of inner width, in
    values of two bytes. `tests/cost_model/test_stepwise_activations.py` counts them.
    """

    forward_accesses: float
    """Values read and written in the forward pass."""
    backward_accesses: float
    """Values read and written in the backward pass."""
    saved_tensors: float
    """Number of tensors of inner width that autograd saves, including the activation's input and output."""
    compiled_accesses: tuple[float, float] | None = None
    """Values read and written forward and backward by compiled code; None for those of any activation."""
    takes_power: bool = False
    """Whether it computes a power: autocast runs a power, and the operations after it, in fp32."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Architecture:
    """The declaration of one family, after transformers' modules for it.

    A family that counts its parameters in another way overrides a method.
    """

    name: str
    """Value of `ModelSpec.architecture`: the `model_type` of transformers."""
    position: Position
    """Kind of positions in attention: a bias by distance (alibi), a learned table, or rotated queries and keys."""
    rotary_share: float | None = None
    """Share of a head that is rotated if `config.json` states none; None if the family always rotates whole heads."""
    norm_vectors: int
    """Vectors of length `hidden_size` in a norm: 2 (weight and bias) or 1 (RMS)."""
    bias: bool
    """Whether the linear layers of a block have a bias."""
    gated: bool
    """Whether the feed-forward block has three matrices instead of two."""
    tied: bool
    """Whether head and input embedding share one matrix by default."""
    embedding_norm: bool
    """Whether a norm follows the input embedding."""
    query_key_value_bias: bool = False
    """Whether the linear layers of queries, keys and values have a bias although the others have none."""
    output_bias: bool = True
    """Whether attention's output layer has a bias too if `ModelSpec.attention_bias` is set."""
    query_key_norm: QueryKeyNorm = "none"
    """The RMSNorms of queries and keys: one per head, one over all heads as a vector, or none."""
    attention_sinks: bool = False
    """Whether each head has a learned score (sink) that joins the softmax without a value, so that the weights of keys
    sum to less than 1.
    """
    block_norms: int = 2
    """Number of norms over `hidden_size` in a block."""
    norm_start: float = 1.0
    """Initial value of a norm's weight; 0 if the norm multiplies by 1 + weight."""
    learned_numbers: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    """Initial values of a block's parameters of one number outside of its layers and norms, by path in the block."""

    config_keys: Mapping[str, tuple[str, ...]]
    """Keys of `config.json` for each field of `ModelSpec`, the preferred key first.

    A field without a key cannot be set: `ffn_size` is then 4 x hidden_size, and `num_kv_heads` the number of heads.
    """
    counted_with: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """Keys of `config.json` that add or remove parameters, with the value that the parameter count assumes."""
    quantized_files: tuple[str, ...] = ()
    """Values of `quant_method` in the `quantization_config` of published files that describe only how weights are
    stored, not the model.
    """
    trained_with: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """Keys of `config.json` that change the mathematics, with the only value that this project trains."""
    config_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """transformers' defaults for keys of `config.json`, for keys that decide sizes."""
    config_overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """Attributes of transformers' configuration that training sets to this value, whatever `config.json` says."""

    embeddings: tuple[str, ...]
    """Paths of the modules before the blocks that have or may have parameters; the token embedding first."""
    blocks: str
    """Path of the list of blocks."""
    final_norm: str
    """Path of the norm after the last block."""
    head: str
    """Path of the layer that computes the logits."""
    stored_as: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    """Names in files of weights for parameters that transformers renames when it reads and writes them."""
    stored_in_parts: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict[str, tuple[str, ...]])
    """The endings of the file tensors that hold one parameter, by the ending of its name, concatenated along rows;
    `{expert}` stands for the number of one expert.
    """

    tensor_parallel: Mapping[str, Cutting]
    """Cut of each linear layer of a block under tensor parallelism, by its path in the block: "colwise" cuts outputs,
    "rowwise" inputs, as in transformers' tables.

    Attention's layers come first. A module around a "colwise" layer takes hidden states as its first argument.
    """
    stacked: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    """"colwise" layers whose outputs are several stacked matrices, with the number of matrices; a rank gets its part of
    each.
    """
    tensor_parallel_refusal: str = ""
    """Reason why tensor parallelism cannot cut the blocks, as the first part of a sentence; empty if it can."""
    float8_refusal: str = ""
    """Reason why a block's linear layers cannot be in FP8, as the first part of a sentence; empty if they can."""
    head_sizes: tuple[str, ...] = ()
    """Attributes of attention modules that count heads or values of all heads; a rank sets its part."""
    norm_place: str = ""
    """Path of the module that a norm of the embeddings replaces if `ModelSpec.embedding_norm` is set and transformers'
    model lacks that norm; empty if the family has no place for it.
    """

    embedding_factor: str = ""
    """Attribute of transformers' model that holds the factor of the embeddings; empty if no such attribute exists."""
    logit_factor: str = ""
    """Attribute of transformers' model that holds the factor or the divisor of the logits; empty if there is none."""

    kernels: str = ""
    """Module of `trainers.kernels` whose `KERNELS` replace modules of transformers; empty if none are replaced."""
    code: str = ""
    """Module of `transformers.models` with the family's code, if its name differs from `name`."""
    fp32_softmax: bool = True
    """Whether transformers' eager attention computes the softmax in fp32; otherwise in the type of the scores."""
    fused_mlp: Mapping[str, tuple[Any, ...]] | None = None
    """Keys of `config.json` with the values (default first) for which a feed-forward block is tanh-approximated GELU
    between two products with biases, which `fuse_mlp` can compute; None if it cannot.
    """
    stepwise_activation: StepwiseActivation | None = None
    """Costs of an activation that is computed in several kernels; None if it is one kernel."""

    def linear_layers(self, spec: ModelSizes) -> dict[str, tuple[int, int]]:
        """Returns (outputs, inputs) of each linear layer of a block, by its path in the block.

        Experts are left out, because they are stacks of matrices; so are shared experts and routers.
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
        """Returns the initial value of the vector called `name` in the model, a norm's weight or a learned number."""
        return next(
            (value for path, value in self.learned_numbers.items() if name.endswith(f".{path}")), self.norm_start
        )

    @property
    def attention_path(self) -> str:
        """Path of the attention module in a block."""
        return next(iter(self.tensor_parallel)).rpartition(".")[0]

    @property
    def softcap_key(self) -> str:
        """Key of `config.json` for the bound of the logits."""
        return self.config_keys["logit_softcap"][0]

    def matrices_per_layer(self, spec: ModelSizes) -> int:
        """Returns the number of a block's parameters in matrix products, without norms and biases."""
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
        """Returns `tensor_parallel_refusal`, or a reason from the sizes of `spec`."""
        if spec.head_norms and not self.tensor_parallel_refusal:
            return f"{spec.name} norms each head by a module of its own ({self.config_keys['head_norms'][0]})"
        return self.tensor_parallel_refusal

    def window(self, config: Mapping[str, Any], num_layers: int) -> SlidingWindow:
        """Returns the sliding window that `config` states; this family has none (families in `windows` override it).

        Raises:
            ValueError: `layer_types` names other blocks than those of full attention.
        """
        kinds = config.get("layer_types")
        listed: list[Any] = kinds if isinstance(kinds, list) else []
        if odd := next((kind for kind in listed if kind != GLOBAL), None):
            raise ValueError(f"layer_types names {shortened(odd)}, and a {self.name} is trained with {GLOBAL} only")
        return SlidingWindow()

    def window_config(self, spec: ModelSizes) -> dict[str, Any]:
        """Returns the keys of `config.json` that give a model the window of `spec`."""
        return {}

    def has_fused_mlp(self, config: Mapping[str, Any]) -> bool:
        """Returns whether `fuse_mlp` can compute the feed-forward block of a model with this `config.json`."""
        return self.fused_mlp is not None and all(
            config.get(key, values[0]) in values for key, values in self.fused_mlp.items()
        )
