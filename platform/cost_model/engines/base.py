"""Interface between the formulas and an engine's data parallelism, with defaults for a plain engine."""

import abc
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from platform.cost_model.columns import Array, Columns, Mask
from platform.cost_model.quantised import quantised_layers
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

NOTHING = np.zeros(())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PerParameter:
    """Bytes per parameter of one rank's share of the model."""

    resident: Array
    held_gradients: Array
    final_gradients: Array
    step_copies: Array
    """Flat copies during the optimizer step."""
    frozen: Array = dataclasses.field(default_factory=lambda: NOTHING)
    """All bytes of a parameter that is not trained; the other fields are for trained parameters."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Copies:
    """Bytes of unsharded copies on one rank at several instants."""

    at_loss: Array
    in_block: Array
    """Bytes during one block's backward pass."""
    at_end: Array
    """Bytes at the end of a micro-batch's backward pass."""
    at_last_end: Array = dataclasses.field(default_factory=lambda: NOTHING)
    """Bytes at the end of a pipeline's last backward pass, without another micro-batch in flight."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """The amount of data to exchange, and the compute that may hide the exchange."""

    owned: Array
    """Number of parameters of the largest rank."""
    trained: Array
    """Number of trained parameters of the largest rank."""
    blocks: Array
    """Number of parameters in the largest rank's blocks, a part of `owned`."""
    slot: Array
    """Seconds of one micro-batch."""
    backward: Array
    """Seconds of one micro-batch's backward pass."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HookCosts:
    """Host seconds of one block's hooks, in addition to its kernels."""

    forward: Array
    backward: Array
    again: Array
    """Host seconds of a checkpointed block's second forward pass."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Certain:
    """Bytes per parameter that a rank certainly holds, for `lower_bound`: never above the true value.

    They count per parameter of the rank's share under tensor and pipeline parallelism (ZeRO, arXiv 1910.02054, section
    3.1).
    """

    resident: float = 0.0
    """Parameters and states, held during the whole step."""
    held_gradients: float = 0.0
    """Gradients alive at the start of the last backward pass."""
    final_gradients: float = 0.0
    """Gradients alive during the optimizer step."""
    block_copies: float = 0.0
    """Copies of all blocks' parameters that exist at the end of the forward pass."""
    unit_copies: float = 0.0
    """Copies of one block's parameters that are gathered for its passes."""
    frozen: float = 0.0
    """A parameter that is not trained; it has no `resident` bytes and no gradients."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Bytes per value or parameter for the lower bound."""

    state: float
    compute: float
    gathered: float
    """Bytes of a block's parameter when gathered by FSDP2: in FP8 with tensorwise scaling (torchao 0.18,
    `Float8LinearConfig`: `enable_fsdp_float8_all_gather` requires it).
    """
    moments: float
    """Bytes of all optimizer states of a parameter; 0 for Adafactor, whose factored states are thin vectors."""
    stored: float
    """Bytes of a stored parameter of the model, mean over all."""

    @classmethod
    def of(cls, recipe: Recipe) -> "Sizes":
        state, compute = (
            2.0 if precision in ("bf16", "fp16") else 4.0
            for precision in (recipe.state_precision, recipe.activation_precision)
        )
        gathered = 1.0 if recipe.float8_scaling == "tensorwise" else compute
        stored, model = compute if recipe.adapter_rank else state, recipe.model
        if recipe.is_quantised:
            saved = model.num_layers * quantised_layers(recipe.quantised_layers.values(), compute).saved
            gathered -= saved / model.over_blocks(lambda kind: kind.parameters(model))
            stored -= saved / model.num_parameters
        return cls(
            state=state,
            compute=compute,
            gathered=gathered,
            moments=2.0 * state if recipe.optimizer == "adamw" else 0.0,
            stored=stored,
        )


class EngineCosts(abc.ABC):
    """Costs of an engine's data parallelism. All rows of a method's `Columns` have this engine."""

    @abc.abstractmethod
    def bucket_bytes(self, state_bytes: float, compute_bytes: float) -> float:
        """Returns the bytes of a gradient bucket of the engine's default size."""

    @abc.abstractmethod
    def per_parameter(self, c: Columns) -> PerParameter:
        """Returns a rank's bytes for parameters, gradients and states; `c.shard` ranks share the sharded ones."""

    @abc.abstractmethod
    def data_s(self, c: Columns, load: Load) -> Array:
        """Returns the exposed seconds per step of data-parallel communication among several ranks."""

    @abc.abstractmethod
    def certain(self, recipe: Recipe, layout: Layout, batch: BatchPoint) -> Certain:
        """Returns the part of `per_parameter` and `copies` that no freeing, fusion or recomputation can reduce."""

    def autocasts(self, c: Columns) -> Mask:
        """Returns the rows whose weights stay in the states' type and are cast for each product."""
        return np.zeros((), dtype=bool)

    def gathers_casts(self, c: Columns) -> Mask:
        """Returns the rows whose owners cast FP8 weights before the gather."""
        return np.zeros((), dtype=bool)

    def float8_casts(self, c: Columns) -> Array:
        """Returns the bytes moved per weight and micro-batch by its casts to FP8: `cast_bytes` before the forward
        product, and for the input's gradient the cast without the search for the largest value (torchao 0.18,
        `Float8Linear`, whose autograd function saves uncast weights).
        """
        return np.where(self.gathers_casts(c), 0.0, np.maximum(2 * c.cast_bytes - c.compute_bytes, 0.0))

    def step_casts_s(self, c: Columns, weights: Array) -> Array:
        """Returns the seconds per step of casting `weights` of one rank to FP8 after the optimizer's step."""
        return NOTHING

    def stops_early(self, c: Columns) -> Mask:
        """Returns the rows whose recomputation stops at the last saved tensor, without the last product
        (torch.utils.checkpoint.set_checkpoint_early_stop).
        """
        return np.ones((), dtype=bool)

    def weight_traffic(self, c: Columns, repeated: Array) -> Array:
        """Returns the bytes moved per parameter and micro-batch in addition to the products; `repeated` is the
        recomputed share.

        Gradient accumulation reads the new gradient, and reads and writes the sum; with one micro-batch there is none.
        """
        return np.where(c.grad_accum > 1, 2 * c.gradient_bytes + c.compute_bytes, 0.0)

    def block_traffic(self, c: Columns, repeated: Array) -> Array:
        """Returns `weight_traffic` for parameters of the blocks."""
        return self.weight_traffic(c, repeated)

    def frozen_traffic(self, c: Columns) -> Array:
        """Returns the bytes moved per frozen parameter and micro-batch in addition to the products."""
        return NOTHING

    def converted_values(self, c: Columns) -> Array:
        """Returns the values per parameter and micro-batch moved by kernels without vectorized loads (casts of
        gradients and sums of two types), in addition to their bytes.
        """
        return NOTHING

    def copies(self, c: Columns, ranks: Sequence[tuple[Array, Array]]) -> Iterator[Copies]:
        """Yields the unsharded copies of each of `ranks`: (parameters outside the blocks, bytes of logits)."""
        for _ in ranks:
            yield Copies(at_loss=NOTHING, in_block=NOTHING, at_end=NOTHING)

    def table_gradient(self, c: Columns) -> Array:
        """Returns the bytes of the vocabulary table's gradient in addition to its sum, on ranks with the table: the
        gradient of a lookup is as large as the table.
        """
        return c.rank_table * c.compute_bytes

    def buckets(self, c: Columns, owned: Array) -> Array:
        """Returns the bytes of the gradient buckets; `owned` is the number of parameters of the largest rank."""
        return NOTHING

    def stage_buffers(self, c: Columns, boundary: Array) -> Array:
        """Returns the bytes that a pipeline keeps per micro-batch in flight in addition to the blocks' activations."""
        return NOTHING

    def unpooled(self, c: Columns, owned: Array) -> Array:
        """Returns the bytes that are freed into one stream's allocator pool but needed in another's."""
        return NOTHING

    def optimizer_ranks(self, c: Columns) -> Array:
        """Returns the number of ranks that share the optimizer's step."""
        return np.where(c.zero_stage >= 1, c.shard, 1.0)

    def tied_ranks(self, c: Columns) -> Array:
        """Returns the number of ranks that share a tied table's gradient when the ends of a pipeline add theirs."""
        return np.ones(())

    def gradients_to_host_s(self, c: Columns, owned: Array) -> Array:
        """Returns the seconds per step of copying gradients to the host at every micro-step; the copy at the end of the
        step is part of the optimizer's time.
        """
        return NOTHING

    def hooks(self, c: Columns) -> HookCosts:
        """Returns the host seconds of one block's hooks."""
        return HookCosts(forward=NOTHING, backward=NOTHING, again=NOTHING)

    def replays(self, c: Columns) -> Mask:
        """Returns the rows whose micro-steps are each launched once, as a captured graph."""
        return np.zeros((), dtype=bool)

    def wraps_optimizer(self, c: Columns) -> Mask:
        """Returns the rows whose engine wraps torch's optimizer, which doubles the host time."""
        return np.zeros((), dtype=bool)

    def step_host_s(self, c: Columns) -> Array:
        """Returns the host seconds of the optimizer's step beyond `Columns.step_host`, while the device waits."""
        return NOTHING

    def step_block_host_s(self, c: Columns) -> Array:
        """Returns the host seconds per block of the optimizer's step, which the device's backlog may hide."""
        return NOTHING

    exchanges_both_ways = True
    """Whether a pipeline stage sends to a neighbour and receives from it at the same time."""

    def instructions_s(self, c: Columns) -> Array:
        """Returns the host seconds of a pipeline's micro-step in addition to its transfers."""
        return NOTHING

    def sigma(self, c: Columns) -> Array:
        """Returns the engine's own log deviation of the step time, in addition to the parts' deviations."""
        return NOTHING
