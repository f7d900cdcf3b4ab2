"""`ModelSizes`: the facts of a model as they are stated, and what follows from them in every family."""

import dataclasses

SWITCHES = ("attention_bias", "mlp_bias", "head_norms", "parallel_residual", "norm_topk_prob")
"""Fields of what a model may have or not have, whatever its family has by default."""
MULTIPLIERS = (
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "logit_scale",
)
"""Fields of constants that scale parts of the model, each called as in `config.json`; 0 in families without them."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelSizes:
    """The fields of a `ModelSpec`. Architectures speak of this: a `ModelSpec` asks them what its family adds."""

    name: str = dataclasses.field(metadata={"cosmetic": True})
    """Its common name, such as "bloom-7b1"."""
    architecture: str
    """A name in `trainers.spec.architectures`."""
    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    ffn_size: int = 0
    """Width of the feed-forward block, of each expert where there are experts; 0 stands for 4 x hidden_size."""
    num_kv_heads: int = 0
    """Key/value heads; 0 stands for num_heads."""
    max_positions: int = 0
    """Rows of the learned position table (gpt2); otherwise the length that the model is made for, 0 for none."""
    tied_embeddings: bool | None = None
    embedding_norm: bool | None = None
    init_std: float = 0.02
    head_width: int = dataclasses.field(default=0, metadata={"later": True})
    """Width of one attention head where it is not hidden_size / num_heads, else 0."""
    window: int = dataclasses.field(default=0, metadata={"later": True})
    """Tokens that a query of a block with a sliding window sees, including its own; 0 where no block has one."""
    window_layers: int = dataclasses.field(default=0, metadata={"later": True})
    """Number of blocks with the window."""
    logit_softcap: float = dataclasses.field(default=0.0, metadata={"later": True})
    """Bound of the logits, applied by a tanh; 0 for none."""
    attention_bias: bool = dataclasses.field(default=False, metadata={"later": True})
    """Whether the linear layers of attention have biases; which of them is the family's."""
    mlp_bias: bool = dataclasses.field(default=False, metadata={"later": True})
    """Whether those of the feed-forward block have."""
    head_norms: bool = dataclasses.field(default=False, metadata={"later": True})
    """Whether each head of queries and keys has a norm with a weight of its own."""
    parallel_residual: bool = dataclasses.field(default=False, metadata={"later": True})
    """Whether attention and feed-forward block take the output of one norm, so that a block has one norm less."""
    num_experts: int = dataclasses.field(default=0, metadata={"later": True})
    """Experts of a block, of which a router chooses `experts_per_token` for each token; 0 where blocks have none."""
    experts_per_token: int = dataclasses.field(default=0, metadata={"later": True})
    shared_ffn_size: int = dataclasses.field(default=0, metadata={"later": True})
    """Width of the expert that every token passes beside those that its router chooses; 0 where there is none."""
    norm_topk_prob: bool = dataclasses.field(default=False, metadata={"later": True})
    """Whether the router's probabilities of a token's experts are divided by their sum, where a family may or may not.
    """
    embedding_multiplier: float = dataclasses.field(default=0.0, metadata={"later": True})
    """Factor of what is embedded."""
    attention_multiplier: float = dataclasses.field(default=0.0, metadata={"later": True})
    """Factor of the products of queries and keys, in place of one by the root of a head's width."""
    residual_multiplier: float = dataclasses.field(default=0.0, metadata={"later": True})
    """Factor of what attention and feed-forward block add to the hidden states."""
    logits_scaling: float = dataclasses.field(default=0.0, metadata={"later": True})
    """Divisor of the logits."""
    logit_scale: float = dataclasses.field(default=0.0, metadata={"later": True})
    """Factor of the logits."""
    config: str = ""
    """The user's config.json as canonical JSON where the model came from one, else empty."""
    miniature_of: str | None = None
    """Name of the model that this one stands in for on machines without a GPU."""

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.head_width or self.hidden_size // self.num_heads

    @property
    def attention_width(self) -> int:
        """Width of the queries of all heads, `hidden_size` unless heads have their own width."""
        return self.num_heads * self.head_dim

    @property
    def score_factor(self) -> float:
        """Factor of the products of queries and keys."""
        return self.attention_multiplier or self.head_dim**-0.5

    @property
    def logit_factor(self) -> float:
        """Factor of the products of hidden states and head."""
        return (self.logit_scale or 1.0) / (self.logits_scaling or 1.0)
