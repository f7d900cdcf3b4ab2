"""DistributedDataParallel: full weights in the states' type, gradients all-reduced in buckets, autocast products."""

from collections.abc import Iterator, Sequence

import numpy as np

from platform.cost_model.columns import Array, Columns, Mask, code_of
from platform.cost_model.compression import held_bytes, passing_bytes, squeezing_s
from platform.cost_model.engines.autocast import (
    autocast_cache,
    autocast_certain,
    cast_traffic,
    gradient_cast,
    head_cast,
)
from platform.cost_model.engines.base import Certain, Copies, EngineCosts, Load, PerParameter, Sizes
from platform.cost_model.engines.exchange import Buckets, hidden_share, syncs
from platform.cost_model.hardware import BANDWIDTH_SHARE
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

_REPLAYED = code_of("cuda_graphs", "on")
_KEPT = code_of("fp8_weights", "kept")


class Ddp(EngineCosts):
    """`torch.nn.parallel.DistributedDataParallel` under torch.amp."""

    def bucket_bytes(self, state_bytes: float, compute_bytes: float) -> float:
        """Returns 25 MiB (`bucket_cap_mb`)."""
        return 25 * 2.0**20

    def autocasts(self, c: Columns) -> Mask:
        return c.compute_bytes < c.stored_bytes

    def replays(self, c: Columns) -> Mask:
        return c.axes["cuda_graphs"] == _REPLAYED

    def weight_traffic(self, c: Columns, repeated: Array) -> Array:
        """Returns the bytes moved by gradient accumulation, and by autocast's cast of each weight in each pass."""
        return super().weight_traffic(c, repeated) + cast_traffic(c, self.autocasts(c), repeated)

    def block_traffic(self, c: Columns, repeated: Array) -> Array:
        """Returns the bytes of `weight_traffic`; of a weight that its layer casts to FP8, autocast casts the gradient
        alone.
        """
        alone = super().weight_traffic(c, repeated) + gradient_cast(c)
        return np.where(self._casts_states(c), alone, self.weight_traffic(c, repeated))

    def _casts_states(self, c: Columns) -> Mask:
        """Returns the rows whose layers cast weights of the states' type to FP8, which autocast leaves alone: those
        with a scale per tensor (`trainers.models.float8`).
        """
        return self.autocasts(c) & (c.gathered_bytes < c.compute_bytes)

    def float8_casts(self, c: Columns) -> Array:
        """Returns the bytes of casts in both passes, of which three reads may be of the states' type. A kept weight is
        only laid out by columns for the input's gradient: a byte read and a byte written (torchao 0.18, operand of
        `torch._scaled_mm`).
        """
        wider = np.where(self._casts_states(c) & (c.cast_bytes > 0), 3 * (c.state_bytes - c.compute_bytes), 0.0)
        return np.where(_keeps(c), 2.0, super().float8_casts(c) + wider)

    def step_casts_s(self, c: Columns, weights: Array) -> Array:
        """Returns the seconds of reading each kept weight for the largest, and again for the cast, of which a byte is
        written.
        """
        return np.where(_keeps(c), weights * (2 * c.state_bytes + 1) / (c.bandwidth * BANDWIDTH_SHARE), 0.0)

    def per_parameter(self, c: Columns) -> PerParameter:
        """Returns the bytes of unsharded weights and states, and of gradients from the first backward pass on."""
        on_device = 1.0 - c.states_on_host
        full = c.state_bytes * np.ones(())
        return PerParameter(
            resident=full * (1 - c.parameters_on_host)
            + full * c.moments * on_device * (1 - c.moments_on_host)
            + held_bytes(c),
            held_gradients=full,
            final_gradients=full * on_device,
            step_copies=np.zeros(()),
            frozen=c.stored_bytes,
        )

    def copies(self, c: Columns, ranks: Sequence[tuple[Array, Array]]) -> Iterator[Copies]:
        """Yields the copies of each rank: autocast's weight copies or kept FP8 ones, the head's copy at the loss, and a
        bucket's copies with compressed gradients.
        """
        cached, passing = autocast_cache(c, self.autocasts(c) & ~self._casts_states(c)), passing_bytes(c)
        kept = np.where(_keeps(c), c.layers * c.rank_block / c.parts("depth"), 0.0)
        cached = np.where(_keeps(c), kept, cached)
        for _, logits in ranks:
            head = head_cast(c, self.autocasts(c), logits)
            yield Copies(at_loss=cached + head, in_block=cached, at_end=passing + kept)

    def table_gradient(self, c: Columns) -> Array:
        """Returns the bytes of the table's gradient, in the sums' type under autocast. A tied table has two gradients,
        from the head and the lookup, until autograd adds them.
        """
        width = np.where(self.autocasts(c), np.maximum(c.gradient_bytes, c.compute_bytes), c.compute_bytes)
        gradient = c.rank_table * width * np.where(c.is_piped, 1.0, 1 + c.tied)
        return np.where(c.adapter_rank > 0, 0.0, gradient) if c.has_adapters else gradient

    def data_s(self, c: Columns, load: Load) -> Array:
        """Returns the exposed seconds per step. Buckets are reduced during the last backward pass (arXiv 2006.15704,
        section 3.2.3). Torch's PowerSGD hook waits for the device after each bucket, so nothing is hidden.
        """
        buckets = Buckets.of(c, load.trained)
        reduced = buckets.reduced_s
        hidden = np.where(c.factor_rank == 0, np.minimum(reduced - reduced / buckets.count, load.backward), 0.0)
        squeezing = squeezing_s(c, load.owned, c.bandwidth * BANDWIDTH_SHARE)
        return syncs(c) * (reduced - hidden * hidden_share(c, buckets.ring) + squeezing)

    def certain(self, recipe: Recipe, layout: Layout, batch: BatchPoint) -> Certain:
        """Returns the certain memory: weights, states and PowerSGD's error feedback. Bucket views hold the gradients
        from the first backward pass on.
        """
        sizes = Sizes.of(recipe)
        certain = autocast_certain(sizes, layout)
        feedback = sizes.state if recipe.powersgd_rank else 0.0
        held = 0.0 if layout.steps_on_host else sizes.state
        copied = 0.0 if recipe.float8_scaling == "tensorwise" else certain.block_copies  # `_casts_states`
        return Certain(
            resident=certain.resident + feedback,
            held_gradients=held,
            final_gradients=certain.final_gradients,
            block_copies=1.0 if layout.fp8_weights == "kept" else copied,
            frozen=sizes.stored,
        )


def _keeps(c: Columns) -> Mask:
    """Returns the rows that keep FP8 weights over a step, a byte each."""
    return c.axes["fp8_weights"] == _KEPT


COSTS = Ddp()
