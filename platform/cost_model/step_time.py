"""Seconds of one optimizer step, from columns: compute, communication, overlap, pipeline, optimizer."""

import dataclasses

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns, checkpointed_share
from platform.cost_model.compute import head_s, layer_seconds, optimizer_s
from platform.cost_model.engines import costs_of
from platform.cost_model.engines.base import Load
from platform.cost_model.host import host_layer_s, host_step_s, together_s
from platform.cost_model.mesh import context_s, rank_parameters, send_s, stages_of, tensor_s

PAGEABLE_BANDWIDTH = constants.number("step_time", "PAGEABLE_BANDWIDTH")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of one optimizer step on the slowest rank, and where they go. The parts add up to `total_s`."""

    total_s: Array
    compute_s: Array
    """Busy with the slowest stage's micro-batches, recomputation included, attention's core left out."""
    attention_s: Array
    """The core of attention, between its two products, likewise."""
    host_s: Array
    """Waiting for kernel launches and hooks."""
    tensor_s: Array
    """Tensor-parallel collectives."""
    pipeline_s: Array
    """Activations between stages."""
    bubble_s: Array
    data_s: Array
    """Gathering parameters and reducing gradients, as far as not hidden."""
    optimizer_s: Array


def step_time(columns: Columns) -> StepTime:
    """The whole step. Pipelines follow 1F1B: (m - 1) slots of the slowest stage and one pass through all stages, the
    latter divided by the virtual stages of an interleaved schedule (arXiv 2104.04473, section 2.2, equation 1).
    """
    c, engine = columns, costs_of(columns)
    layer = layer_seconds(c)
    head_forward, head_backward = head_s(c)
    host_forward, host_backward, host_again = host_layer_s(c)
    stages = stages_of(c)
    full = c.full_checkpointing > 0
    tokens = c.micro_batch * c.seq_len / c.cp
    boundary = tokens * c.hidden * c.compute_bytes
    tensor = tensor_s(c, boundary, full)
    context = context_s(c, tokens)
    # A checkpointed input on the host goes there and comes back, each tensor-parallel rank its part.
    on_host = full & (c.kept_checkpoints == 0)
    to_host = np.where(on_host, 2 * boundary / c.tp / c.checkpoint_blocks / PAGEABLE_BANDWIDTH, 0.0)
    busy = layer.forward + layer.backward + layer.again + context + to_host
    launch = host_forward + host_backward + np.where(full, host_again * checkpointed_share(c), 0.0)
    whole_head = head_forward + head_backward
    # While the device is at the head, the host runs ahead into the backward pass.
    ahead = np.where(c.pp > 1, 0.0, whole_head / c.layers)
    device = busy + tensor + ahead
    waits = _waits_s(c, launch, device)
    # The host reaches the optimizer's step after its last micro-step: what the device is behind by hides it.
    stepping = _waits_s(c, launch + engine.step_block_host_s(c), device) - waits
    head = np.where(c.pp > 1, whole_head, 0.0)

    # One micro-batch on the slowest stage: a middle one, or the last with the head.
    middle = stages.largest * (busy + waits + tensor)
    last = stages.last * (busy + waits + tensor) + head
    slot = np.where(c.pp > 1, np.maximum(middle, last), middle + whole_head)
    slot_layers = np.where(c.pp > 1, np.where(middle >= last, stages.largest, stages.last), c.layers)
    through = c.layers * (busy + waits + tensor) + whole_head
    m = c.grad_accum
    send = send_s(c, boundary)
    # Two exchanges a micro-batch and virtual stage, of activations and of gradients.
    transfers = 2 * send * c.virtual_stages + engine.instructions_s(c)
    pipeline = np.where(c.pp > 1, (m + c.pp - 1) * transfers, 0.0)
    bubble = np.where(c.pp > 1, (through - slot) / c.virtual_stages, 0.0)

    owned, blocks = rank_parameters(c, stages)
    backward = layer.backward * slot_layers + head_backward
    exchanged = engine.data_s(c, Load(owned=owned, blocks=blocks, slot=slot, backward=backward))
    data = np.where((c.dp * c.cp > 1) | (c.parameters_on_host > 0), exchanged, 0.0)
    data = data + engine.gradients_to_host_s(c, owned)
    optimizer = optimizer_s(c, owned / engine.optimizer_ranks(c)) + host_step_s(c)

    tensor_total = m * slot_layers * tensor
    host_step = slot_layers * stepping
    host_total = m * slot_layers * waits
    attention_total = m * slot_layers * layer.attention
    compute = m * slot - tensor_total - host_total - attention_total
    total = m * slot + host_step + pipeline + bubble + data + optimizer
    return StepTime(
        total_s=total,
        compute_s=compute,
        attention_s=attention_total,
        host_s=host_total + host_step,
        tensor_s=tensor_total,
        pipeline_s=pipeline,
        bubble_s=bubble,
        data_s=data,
        optimizer_s=optimizer,
    )


def _waits_s(c: Columns, host: Array, device: Array) -> Array:
    """Seconds that a device with so much work waits for its host with so much."""
    return np.where(c.blocking > 0, host, together_s(host, device) - device)
