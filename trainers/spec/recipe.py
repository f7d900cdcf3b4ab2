"""`Recipe`: all settings of a training that change its mathematics. Only measurements of one recipe compete."""

import dataclasses
import functools
import math
from collections.abc import Mapping

from trainers.spec import adapters
from trainers.spec.axis import axes_of, choices_of, defaults_of
from trainers.spec.codec import identity, shortened
from trainers.spec.recipe_axes import LARGEST_BATCH, Precision, RecipeAxes, check_number
from trainers.spec.workload import Workload

_COEFFICIENT = "router_aux_loss_coef"
"""Key of a model's configuration for the factor of its balance loss."""


@dataclasses.dataclass(frozen=True, kw_only=True)  # no slots: cached properties are kept beside the fields
class Recipe(RecipeAxes):
    """Model, batch, optimizer, precisions and data of one training run; for a workload only the lengths.

    Raises:
        ValueError: a value is out of range or unknown, values contradict each other, a sequence is longer than the
            model's positions, or not exactly one of model and workload is given.
    """

    def __post_init__(self) -> None:
        for field, names in choices_of(Recipe).items():
            if getattr(self, field) not in names:
                raise ValueError(f"{field} must be one of {', '.join(names)}, got {getattr(self, field)!r}")
        if self.grad_accum and self.global_batch:
            raise ValueError(
                f"a fixed grad_accum makes the global batch follow from it: give one of them, got grad_accum"
                f" {self.grad_accum} and global_batch {self.global_batch}"
            )
        for field in ("seq_len", "grad_accum" if self.grad_accum else "global_batch"):
            check_number(field, getattr(self, field))
        for field in ("learning_rate", "epsilon"):
            if not 0 < getattr(self, field) < math.inf:
                raise ValueError(f"{field} must be a finite number above 0, got {getattr(self, field)}")
        for field in ("weight_decay", "grad_clip", "seed"):
            if not 0 <= getattr(self, field) < 2**63:
                raise ValueError(f"{field} must lie in [0, 2^63), got {shortened(getattr(self, field))}")
        for field in ("beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"{field} must lie in [0, 1), got {getattr(self, field)}")
        if not 0 <= self.document_tokens <= LARGEST_BATCH:
            raise ValueError(f"document_tokens must lie in [0, 10^12], got {shortened(self.document_tokens)}")
        if self.document_tokens and self.attention_mask != "document":
            raise ValueError(
                f"document_tokens is the length of documents under a document mask, got {self.document_tokens} under a"
                f" {self.attention_mask} mask: set it to 0, or attention_mask to document"
            )
        if self.has_model == (self.workload is not None):
            raise ValueError("a recipe trains either a model or a workload, got both or neither")
        self._check_adapters()
        if self.routing != "learned" and not (self.has_model and self.model.num_experts):
            raise ValueError(
                f"routing {self.routing} needs a model with experts, {self.name} has none: set routing to learned"
            )
        if not 0 <= self.balance_rate < math.inf:
            raise ValueError(f"balance_rate must be a finite number of at least 0, got {self.balance_rate}")
        if self.balance_rate and self.balance_loss == "none":
            raise ValueError(f"balance_rate needs a balance_loss, got {self.balance_rate}: set balance_loss too")
        if self.balance_loss == "aux" and self.has_model and not self.balance_rate:
            rate = self.model.settings.get(_COEFFICIENT, 0.0)
            if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < math.inf:
                raise ValueError(
                    f"{_COEFFICIENT} must be a number of at least 0, got {shortened(rate)}: set balance_rate"
                )
        if self.balance_loss != "none" and not (self.has_model and self.model.num_experts):
            raise ValueError(
                f"balance_loss {self.balance_loss} needs a model with experts, {self.name} has none: set it to none"
            )
        if self.has_model and self.model.position == "learned" and self.seq_len > self.model.max_positions:
            raise ValueError(
                f"seq_len {self.seq_len} is longer than the {self.model.max_positions} positions of {self.model.name}"
            )

    def _check_adapters(self) -> None:
        if not 0 < self.lora_alpha < math.inf:
            raise ValueError(f"lora_alpha must be a finite number above 0, got {self.lora_alpha}")
        if self.adapter == "none":
            for name in ("lora_targets", "lora_alpha"):
                if (value := getattr(self, name)) != defaults_of(Recipe)[name]:
                    raise ValueError(
                        f"{name} needs an adapter, got {shortened(value)} and adapter none: set adapter too"
                    )
        elif self.has_model:
            _ = adapters.layers(self.model, self.lora_targets)
            _ = self.quantised_layers

    @functools.cached_property
    def id(self) -> str:
        return _identity(self)

    @property
    def has_model(self) -> bool:
        """Whether this project trains the recipe's model; otherwise a workload trains, of which only the lengths are
        known.
        """
        return self.model is not None  # pyright: ignore[reportUnnecessaryComparison]

    @property
    def command(self) -> Workload | None:
        """The workload if it is a command, which runs in its own processes; else None."""
        return self.workload if self.workload and self.workload.command else None

    @property
    def name(self) -> str:
        return self.workload.name if self.workload else self.model.name

    @property
    def miniature_of(self) -> str | None:
        """The model that a miniature replaces; None for other models."""
        return self.model.miniature_of if self.has_model else None

    @property
    def unknown(self) -> frozenset[str]:
        """Fields whose value is unknown, because a workload decides it; no view shows them."""
        return _UNKNOWN if self.workload else frozenset()

    @property
    def has_flags(self) -> bool:
        """Whether tokens carry flags and some tokens have no loss (`trainers.data.flags`)."""
        return self.attention_mask != "causal" or self.trained_tokens != "all"

    @property
    def length_remark(self) -> str:
        """A sentence if `seq_len` exceeds the length that the model's positions are made for; else empty."""
        length = self.model.made_for if self.has_model else 0
        if not length or self.seq_len <= length:
            return ""
        return (
            f"seq_len {self.seq_len} is beyond the {length} positions that {self.model.name} is made for: it trains all"
            " the same; for weights that have not seen them a factor of YaRN in rope_scaling stretches positions"
        )

    def decays(self, num_dimensions: int) -> bool:
        """Returns whether weight decay applies to a parameter with that many dimensions."""
        return self.decay == "all" or num_dimensions > 1

    @property
    def regularization(self) -> str:
        """Sentences on dropout, weight decay and tokens without a loss; empty if a workload decides them."""
        if self.workload:
            return ""
        decayed = {"all": "every parameter, norms and biases too", "matrices": "matrices alone, embeddings among them"}
        if self.adapter_rank:
            decayed = dict.fromkeys(decayed, "the adapters, which are all that trains")
        decay = f"a weight decay of {self.weight_decay:g} takes {decayed[self.decay]}"
        loss = " Marked tokens alone have a loss; tokens/s count all." if self.trained_tokens == "marked" else ""
        return f"There is no dropout, and {decay if self.weight_decay else 'nothing decays'}.{loss}"

    @property
    def as_trained(self) -> "Recipe":
        """The recipe without settings that serve measuring alone (forced routing)."""
        return dataclasses.replace(self, routing="learned")

    @property
    def forced_balance(self) -> str:
        """Text on forced balance: the tokens of a sequence that each expert gets in each block; empty if the router
        chooses.
        """
        if self.routing == "learned":
            return ""
        rows, num_experts = self.seq_len * self.model.experts_per_token, self.model.num_experts
        fullest, empty = -(-rows // num_experts), max(0, num_experts - rows)
        mean = f"{rows / num_experts:g} tokens of a sequence for each of {num_experts} experts in every block"
        return f"{mean}, {fullest} at most, {empty} experts without any"

    @property
    def rate_of_balance(self) -> float:
        """`balance_rate`, or for 0 the default: the model's coefficient, else 0.001."""
        stated = self.model.settings.get(_COEFFICIENT) if self.balance_loss == "aux" else None
        return self.balance_rate or (0.001 if stated is None else stated)

    @property
    def powersgd_rank(self) -> int:
        """Rank of the factors that PowerSGD exchanges; 0 for other compressions."""
        name, _, rank = self.compression.partition("_")
        return int(rank) if name == "powersgd" else 0

    @property
    def adapter_rank(self) -> int:
        """Rank of the adapters that train in place of the model's own parameters; 0 without adapters."""
        return int(self.adapter.partition("_")[2] or 0)

    @property
    def is_quantised(self) -> bool:
        """Whether the frozen weights of the blocks' linear layers are in NF4."""
        return self.adapter.startswith("qlora")

    @property
    def quantised_layers(self) -> Mapping[str, tuple[int, int]]:
        """(outputs, inputs) of each linear layer of a block whose weights are in NF4, by its path in the block."""
        return adapters.quantised_layers(self.model) if self.is_quantised else {}

    @property
    def adapted_layers(self) -> Mapping[str, tuple[int, int]]:
        """(outputs, inputs) of each linear layer of a block that has adapters, by its path in the block."""
        return adapters.layers(self.model, self.lora_targets) if self.adapter_rank else {}

    @property
    def adapters_per_layer(self) -> int:
        return self.adapter_rank * sum(outputs + inputs for outputs, inputs in self.adapted_layers.values())

    @property
    def trained_parameters(self) -> int:
        """Number of parameters that train: the adapters' if there are any, else the model's."""
        adapter_parameters = self.adapters_per_layer * self.model.num_layers
        return adapter_parameters if self.adapter_rank else self.model.num_parameters

    @property
    def lora_scale(self) -> float:
        """Factor of an adapter's output before it is added."""
        return self.lora_alpha / self.adapter_rank

    def flops_per_token(self, *, keys_per_query: float) -> float:
        """Returns the FLOPs of forward and backward pass for one token, by the "products" convention of
        `ModelSpec.flops_per_token`.

        A frozen weight has no gradient, which saves a third of its FLOPs; an adapter adds the products of its
        parameters.
        """
        products = self.model.flops_per_token(self.seq_len, keys_per_query=keys_per_query)
        if not self.adapter_rank:
            return products
        return products - 2.0 * self.model.product_parameters + 6.0 * self.trained_parameters

    @property
    def float8_scaling(self) -> str:
        """Granularity of the scales of FP8 products: "tensorwise" or "rowwise"; empty without FP8."""
        kind, _, scaling = self.compute_precision.partition("_")
        return scaling if kind == "fp8" else ""

    @property
    def product_type(self) -> str:
        """The type of most products: "fp8" for any scaling, else `compute_precision`."""
        return "fp8" if self.float8_scaling else self.compute_precision

    @property
    def activation_precision(self) -> Precision:
        """The type of activations, and of all products that are not in FP8."""
        return "bf16" if self.float8_scaling else self.compute_precision

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one optimizer step over all ranks.

        With a fixed `grad_accum` these are the tokens of `grad_accum` sequences, so that all batch points compare by
        the time for the same number of tokens.
        """
        return (self.global_batch or self.grad_accum) * self.seq_len

    def of_batch(self, global_batch: int) -> "Recipe":
        """Returns the recipe with that global batch and without a fixed accumulation, as a training of one batch point
        uses it.
        """
        return dataclasses.replace(self, global_batch=global_batch, grad_accum=0)

    @property
    def label(self) -> str:
        """A line of text: model, length, batch, optimizer and precisions."""
        if self.workload:
            return f"{self.name}, length {self.seq_len}, global batch {self.global_batch}"
        words = self.axis_labels()
        batch = f"accumulation {self.grad_accum}" if self.grad_accum else f"global batch {self.global_batch}"
        return ", ".join([self.model.name, words.pop("seq_len"), batch, *words.values()])


_UNKNOWN = frozenset(axes_of(Recipe)) - {"seq_len", "global_batch", "grad_accum"} | {"model"}
# A search over many layouts asks for the hash of its one recipe once per layout.
_identity = functools.lru_cache(maxsize=64)(identity)
