"""Seconds of one optimizer step from columns: compute, communication, overlap, pipeline, optimizer."""

import dataclasses

import numpy as np

from platform.cost_model import blocks, constants
from platform.cost_model.columns import Array, Columns, Mask, checkpointed_share
from platform.cost_model.compute import head_s, optimizer_s
from platform.cost_model.engines import costs_of
from platform.cost_model.engines.base import Load
from platform.cost_model.host import host_layer_s, host_step_s, together_s
from platform.cost_model.layer_time import LayerSeconds, layer_seconds
from platform.cost_model.links import SHARING
from platform.cost_model.mesh import (
    Stages,
    exchanges_s,
    rank_parameters,
    stages_of,
    tied_ends_s,
    vocabulary_s,
)

PAGEABLE_BANDWIDTH = constants.number("step_time", "PAGEABLE_BANDWIDTH")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of one optimizer step on the slowest rank, in parts that add up to `total_s`."""

    total_s: Array
    compute_s: Array
    """Compute of the slowest stage's micro-batches, including recomputation, without the attention core."""
    attention_s: Array
    """The attention core, between the query-key-value and the output product, including recomputation."""
    host_s: Array
    """Time in which the device waits for kernel launches and hooks."""
    tensor_s: Array
    """Tensor-parallel collectives."""
    exchanges_s: Array
    """Exchanges of blocks in context and expert parallelism, for which they wait."""
    pipeline_s: Array
    """Transfers of activations between stages."""
    bubble_s: Array
    data_s: Array
    """Exposed time of gathering parameters and reducing gradients."""
    optimizer_s: Array


def step_time(columns: Columns) -> StepTime:
    """Returns the time of the whole step and its parts. Pipelines follow 1F1B: (m - 1) slots of the slowest stage and
    one pass through all stages, divided by the virtual stages of an interleaved schedule (arXiv 2104.04473, section
    2.2, equation 1).
    """
    c, m = columns, columns.grad_accum
    stages, head = stages_of(c), head_s(c)
    block = _block(c, head[0] + head[1])
    ends = vocabulary_s(c, boundary_bytes(c), residual_bytes(c))
    with_ends = head[0] + head[1] + ends
    slot, slot_layers = _slot(c, stages, block, with_ends)
    pipeline, bubble = _pipeline_s(c, block, slot, with_ends)
    data, optimizer = _exchange_s(c, stages, slot, block.layer.backward * slot_layers + head[1])
    tensor = m * (slot_layers * block.tensor + ends)
    waits = m * slot_layers * block.waits
    stepping = slot_layers * block.stepping
    attention = m * slot_layers * block.layer.attention
    exchanged = m * slot_layers * block.exchanged
    return StepTime(
        total_s=m * slot + stepping + pipeline + bubble + data + optimizer,
        compute_s=m * slot - tensor - exchanged - waits - attention,
        attention_s=attention,
        host_s=waits + stepping,
        tensor_s=tensor,
        exchanges_s=exchanged,
        pipeline_s=pipeline,
        bubble_s=bubble,
        data_s=data,
        optimizer_s=optimizer,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """Seconds of one block for one micro-batch."""

    layer: LayerSeconds
    busy: Array
    """Device seconds without tensor-parallel collectives."""
    exchanged: Array
    """Seconds of `busy` in which the block waits for context and expert parallelism."""
    tensor: Array
    waits: Array
    """Seconds that the device waits for its host."""
    stepping: Array
    """Seconds per step that the device waits for its host during the optimizer's step."""

    @property
    def total(self) -> Array:
        """Seconds of the block without `stepping`."""
        return self.busy + self.waits + self.tensor


def host_runs_ahead(c: Columns) -> Mask:
    """Returns the rows whose device has more work in a block than its host: launched kernels queue and keep memory."""
    work = _work(c, np.add(*head_s(c)))
    return work.device > work.host


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """Seconds of one block for one micro-batch that the device and the host would take alone."""

    layer: LayerSeconds
    busy: Array
    """Device seconds without tensor-parallel collectives."""
    exchanged: Array
    tensor: Array
    device: Array
    """Device seconds with the block's share of the head."""
    host: Array
    device_forward: Array
    host_forward: Array


def _work(c: Columns, head: Array) -> _Work:
    layer = layer_seconds(c)
    full = c.full_checkpointing > 0
    boundary = boundary_bytes(c)
    tensor, context = blocks.mean(c, lambda kind: (kind.tensor_s(c, boundary, full), kind.context_s(c, c.tokens, full)))
    # An offloaded checkpoint is copied to the host and back; each tensor-parallel rank copies its part.
    on_host = full & (c.software.checkpoint_device_share == 0)
    to_host = np.where(
        on_host, 2 * boundary / c.parts("width") / c.software.checkpoint_blocks / PAGEABLE_BANDWIDTH, 0.0
    )
    busy = layer.forward + layer.backward + layer.again + context + to_host
    (launches,) = blocks.mean(c, lambda kind: (kind.further_launches(c),))
    forward, backward, again = host_layer_s(c, launches)
    return _Work(
        layer=layer,
        busy=busy,
        exchanged=context,
        tensor=tensor,
        # While the device computes the head, the host runs ahead into the backward pass.
        device=busy + tensor + np.where(c.is_piped, 0.0, head / c.layers),
        host=forward + backward + np.where(full, again * checkpointed_share(c), 0.0),
        device_forward=layer.forward + tensor / np.where(full, 3.0, 2.0),
        host_forward=forward,
    )


def _block(c: Columns, head: Array) -> _Block:
    work = _work(c, head)
    waits = through = _waits_s(c, work.host, work.device)
    each_pass = (c.software.waits_each_pass > 0) | (c.parts("experts") > 1)
    if np.any(each_pass):
        # A host that waits for its device after each pass cannot run ahead into the next pass. With expert parallelism
        # it waits in each forward pass of a block, to read the numbers of rows.
        forward = _waits_s(c, work.host_forward, work.device_forward)
        backward = _waits_s(c, work.host - work.host_forward, work.busy + work.tensor - work.device_forward)
        waits = np.where(each_pass, forward + backward, through)
    # The host reaches the optimizer's step after its last micro-step; the device's backlog then hides the host's time.
    stepping = _waits_s(c, work.host + costs_of(c).step_block_host_s(c), work.device) - through
    return _Block(
        layer=work.layer,
        busy=work.busy,
        exchanged=work.exchanged,
        tensor=work.tensor,
        waits=waits,
        stepping=stepping,
    )


def boundary_bytes(c: Columns) -> Array:
    """Returns the bytes of one micro-batch's hidden states in the products' type."""
    return c.tokens * c.hidden * c.compute_bytes


def residual_bytes(c: Columns) -> Array:
    """Returns the bytes of one micro-batch's hidden states in the residual stream's type (weights' with autocast)."""
    return boundary_bytes(c) * np.where(costs_of(c).autocasts(c), c.state_bytes / c.compute_bytes, 1.0)


def _slot(c: Columns, stages: Stages, block: _Block, head: Array) -> tuple[Array, Array]:
    """Returns (seconds of one micro-batch, blocks) of the slowest stage: a middle stage, or the last with the head."""
    middle = stages.largest * block.total
    last = stages.last * block.total + np.where(c.is_piped, head, 0.0)
    slowest = np.where(middle >= last, stages.largest, stages.last)
    return (
        np.where(c.is_piped, np.maximum(middle, last), middle + head),
        np.where(c.is_piped, slowest, c.layers),
    )


def _pipeline_s(c: Columns, block: _Block, slot: Array, head: Array) -> tuple[Array, Array]:
    """Returns the seconds (of transfers, of the bubble). Each micro-batch exchanges activations and gradients once per
    virtual stage. The slowest stage sets the pace, and one micro-batch passes all boundaries.
    """
    engine = costs_of(c)
    exchanges = exchanges_s(c, boundary_bytes(c), residual_bytes(c), both_ways=engine.exchanges_both_ways)
    slowest, mean = (seconds * c.axes["virtual"] + engine.instructions_s(c) for seconds in exchanges)
    through = c.layers * block.total + head
    return (
        np.where(c.is_piped, c.grad_accum * slowest + (c.parts("depth") - 1) * mean, 0.0),
        np.where(c.is_piped, (through - slot) / c.axes["virtual"], 0.0),
    )


def _exchange_s(c: Columns, stages: Stages, slot: Array, backward: Array) -> tuple[Array, Array]:
    """Returns the seconds (exposed of data parallelism, of the optimizer)."""
    engine = costs_of(c)
    owned, blocks = rank_parameters(c, stages)
    trained = c.trained(owned)
    exchanged = engine.data_s(c, Load(owned=owned, trained=trained, blocks=blocks, slot=slot, backward=backward))
    data = np.where((c.ranks(SHARING) > 1) | (c.parameters_on_host > 0), exchanged, 0.0)
    optimizer = optimizer_s(c, trained / engine.optimizer_ranks(c)) + host_step_s(c) + engine.step_casts_s(c, blocks)
    data = data + tied_ends_s(c, engine.tied_ranks(c))
    return data + engine.gradients_to_host_s(c, trained), optimizer


def _waits_s(c: Columns, host: Array, device: Array) -> Array:
    """Returns the seconds that a device with `device` seconds of work waits for a host with `host` seconds."""
    return np.where(c.software.blocking > 0, host, together_s(host, device, c.software.sharpness) - device)
