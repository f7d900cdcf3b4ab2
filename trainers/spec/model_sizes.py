"""`ModelSizes`: the stated facts of a model, and sizes that follow from them in every family."""

import dataclasses

SWITCHES = ("attention_bias", "mlp_bias", "head_norms", "parallel_residual", "norm_topk_prob")
"""Fields for features that a model may have or lack, whatever its family's default."""
MULTIPLIERS = (
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "logit_scale",
)
"""Fields for constants that scale parts of the model, named as in `config.json`; 0 in families without them."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelSizes:
    """The fields of a `ModelSpec`. Architectures take this class, because a `ModelSpec` asks them for its family's
    values.
    """

    name: str = dataclasses.field(metadata={"cosmetic": True})
    """Its common name, such as "bloom-7b1"."""
    architecture: str
    """Name of a module in `trainers.spec.architectures`."""
    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    ffn_size: int = 0
    """Width of the feed-forward block, or of each expert; 0 means 4 x hidden_size."""
    num_kv_heads: int = 0
    """Number of key/value heads; 0 means num_heads."""
    max_positions: int = 0
    """Rows of the learned position table (gpt2), otherwise the sequence length that the model is made for; 0 for none.
    """
    tied_embeddings: bool | None = None
    embedding_norm: bool | None = None
    init_std: float = 0.02
    head_width: int = dataclasses.field(default=0, metadata={"later": True})
    """Width of one attention head if it differs from hidden_size / num_heads, else 0."""
    window: int = dataclasses.field(default=0, metadata={"later": True})
    """Number of tokens that a query of a windowed block attends to, itself included; 0 if no block has a window."""
    window_layers: int = dataclasses.field(default=0, metadata={"later": True})
    """Number of blocks with the window."""
    logit_softcap: float = dataclasses.field(default=0.0, metadata={"later": True})
    """Bound of the logits, applied by a tanh; 0 for none."""
    attention_bias: bool = dataclasses.field(default=False, metadata={"later": True})
    """Whether the linear layers of attention have biases; the family says which of them."""
    mlp_bias: bool = dataclasses.field(default=False, metadata={"later": True})
    """Whether the linear layers of the feed-forward block have biases."""
    head_norms: bool = dataclasses.field(default=False, metadata={"later": True})
    """Whether each head of queries and keys has its own norm with a weight."""
    parallel_residual: bool = dataclasses.field(default=False, metadata={"later": True})
    """Whether attention and feed-forward block share one norm's output, so that a block has one norm fewer."""
    num_experts: int = dataclasses.field(default=0, metadata={"later": True})
    """Number of experts of a block, of which a router chooses `experts_per_token` for each token; 0 for blocks without
    experts.
    """
    experts_per_token: int = dataclasses.field(default=0, metadata={"later": True})
    shared_ffn_size: int = dataclasses.field(default=0, metadata={"later": True})
    """Width of the shared expert, which computes every token beside the chosen experts; 0 for none."""
    norm_topk_prob: bool = dataclasses.field(default=False, metadata={"later": True})
    """Whether the router's probabilities of a token's experts are divided by their sum, in families where this is
    optional.
    """
    embedding_multiplier: float = dataclasses.field(default=0.0, metadata={"later": True})
    """Factor of the embedding's output."""
    attention_multiplier: float = dataclasses.field(default=0.0, metadata={"later": True})
    """Factor of the products of queries and keys, instead of 1 / sqrt(head width)."""
    residual_multiplier: float = dataclasses.field(default=0.0, metadata={"later": True})
    """Factor of the outputs that attention and feed-forward block add to the hidden states."""
    logits_scaling: float = dataclasses.field(default=0.0, metadata={"later": True})
    """Divisor of the logits."""
    logit_scale: float = dataclasses.field(default=0.0, metadata={"later": True})
    """Factor of the logits."""
    config: str = ""
    """The user's config.json as canonical JSON if the model was read from one, else empty."""
    miniature_of: str | None = None
    """Name of the model that this miniature replaces on machines without a GPU."""

    @property
    def head_dim(self) -> int:
        return self.head_width or self.hidden_size // self.num_heads

    @property
    def attention_width(self) -> int:
        """Total width of the queries of all heads; equals `hidden_size` unless heads have their own width."""
        return self.num_heads * self.head_dim

    @property
    def score_factor(self) -> float:
        """Factor of the products of queries and keys."""
        return self.attention_multiplier or self.head_dim**-0.5

    @property
    def logit_factor(self) -> float:
        """Factor of the products of hidden states and head weights."""
        return (self.logit_scale or 1.0) / (self.logits_scaling or 1.0)
