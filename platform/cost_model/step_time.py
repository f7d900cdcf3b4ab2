"""Seconds of one optimizer step, from columns: compute, communication, overlap, pipeline, optimizer."""

import dataclasses

import numpy as np

from platform.cost_model import offload
from platform.cost_model.collectives import all_reduce_s, gather_s, ring_bandwidth
from platform.cost_model.columns import DDP, DEEPSPEED, FSDP, Array, Columns, Mask, checkpointed_share
from platform.cost_model.compression import squeezing_s
from platform.cost_model.compute import BANDWIDTH_SHARE, head_s, layer_seconds, optimizer_s
from platform.cost_model.host import INSTRUCTIONS_S, host_layer_s, host_step_layer_s, host_step_s, together_s

OVERLAP_SLOWDOWN = 0.18
"""Share of hidden communication that still slows compute: NCCL's ring over NVLink runs on 24 of a Hopper's 132 or an
Ampere's 108 units while it lasts (NCCL, `NCCL_MAX_CTAS`; arXiv 2304.11277, section 5.3, for the effect)."""
ZERO_3_GATHERS = 12.0
"""Collectives of one block and pass under ZeRO-3, which gathers parameter by parameter (a GPT block has 12)."""
PAGEABLE_BANDWIDTH = 4e9
"""Bytes a second between device and pageable host memory: `checkpoint_in_cpu` copies there and back without pinning and
waits (DeepSpeed, `activation_checkpointing/checkpointing.py`); PCIe 3 gives 12e9 to pinned memory, a third to this."""


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """Blocks of pipeline stages: DeepSpeed and Megatron-LM cut blocks evenly, or count embedding and head as blocks."""

    largest: Array
    """Blocks of the largest stage."""
    first: Array
    last: Array


def stages_of(columns: Columns) -> Stages:
    """Even cuts where the pipeline degree divides the blocks; else embedding and head count as one block each, where
    that makes it even (DeepSpeed's `partition_method="type:transformer|embedding"`); else the rest goes to some.
    """
    layers, pp = columns.layers, columns.pp
    even = layers % pp == 0
    with_ends = ~even & ((layers + 2) % pp == 0)
    largest = np.where(with_ends, (layers + 2) / pp, np.ceil(layers / pp))
    ends = np.where(with_ends, (layers + 2) / pp - 1, np.where(even, layers / pp, np.floor(layers / pp)))
    return Stages(largest=np.where(pp == 1, layers, largest), first=ends, last=ends)


def step_time(columns: Columns) -> StepTime:
    """The whole step. Pipelines follow 1F1B: (m - 1) slots of the slowest stage and one pass through all stages, the
    latter divided by the virtual stages of an interleaved schedule (arXiv 2104.04473, section 2.2, equation 1).
    """
    c = columns
    layer = layer_seconds(c)
    head_forward, head_backward = head_s(c)
    host_forward, host_backward, host_again = host_layer_s(c)
    stages = stages_of(c)
    full = c.full_checkpointing > 0
    tokens = c.micro_batch * c.seq_len / c.cp
    boundary = tokens * c.hidden * c.compute_bytes
    tensor = _tensor_s(c, boundary, full)
    context = _context_s(c, tokens)
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
    stepping = _waits_s(c, launch + host_step_layer_s(c), device) - waits
    head = np.where(c.pp > 1, whole_head, 0.0)

    # One micro-batch on the slowest stage: a middle one, or the last with the head.
    middle = stages.largest * (busy + waits + tensor)
    last = stages.last * (busy + waits + tensor) + head
    slot = np.where(c.pp > 1, np.maximum(middle, last), middle + whole_head)
    slot_layers = np.where(c.pp > 1, np.where(middle >= last, stages.largest, stages.last), c.layers)
    through = c.layers * (busy + waits + tensor) + whole_head
    m = c.grad_accum
    send = _send_s(c, boundary)
    # Two exchanges a micro-batch and virtual stage, of activations and of gradients.
    instructions = np.where(c.engine == DEEPSPEED, INSTRUCTIONS_S, 0.0)
    pipeline = np.where(c.pp > 1, (m + c.pp - 1) * (2 * send * c.virtual_stages + instructions), 0.0)
    bubble = np.where(c.pp > 1, (through - slot) / c.virtual_stages, 0.0)

    data = _data_s(c, stages, slot, layer.backward * slot_layers + head_backward)
    owned, _ = rank_parameters(c, stages)
    sharded = np.where((c.zero_stage >= 1) | (c.engine == FSDP), c.shard, 1.0)
    optimizer = optimizer_s(c, owned / sharded) + host_step_s(c)

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


def rank_parameters(columns: Columns, stages: Stages) -> tuple[Array, Array]:
    """Parameters (of the largest rank, of its blocks alone): the first stage has the embedding, the last the head.

    A tied table lies on both ends of a pipeline.
    """
    c = columns
    blocks = stages.largest * c.layer_parameters / c.tp
    whole = (c.layers * c.layer_parameters + c.embedding_parameters) / c.tp
    ends = (
        stages.first * c.layer_parameters / c.tp
        + np.where(c.tied > 0, c.embedding_parameters, c.embedding_parameters - c.table_parameters) / c.tp
    )
    return np.where(c.pp > 1, np.maximum(blocks, ends), whole), np.where(
        c.pp > 1, blocks, c.layers * c.layer_parameters / c.tp
    )


def _links(c: Columns) -> tuple[Array, Array, Array, Array]:
    """What `ring_bandwidth` asks of a cluster."""
    return c.devices_per_node, c.intra_bandwidth, c.inter_bandwidth, c.group_bandwidth


def _tensor_s(c: Columns, boundary: Array, full: Mask) -> Array:
    """Tensor-parallel collectives of one block and micro-batch: two all-reduces of the residual a pass (Megatron-LM,
    arXiv 1909.08053, section 3); with sequence parallelism as much in gathers and scatters (arXiv 2205.05198, 4.2.2).
    They wait for compute and compute waits for them. Innermost in the mesh, so within a node while they fit.
    """
    in_node = np.minimum(c.tp, c.devices_per_node)
    bandwidth = ring_bandwidth(c.tp, in_node, *_links(c))
    latency = np.where(c.tp > c.devices_per_node, c.inter_latency, c.intra_latency)
    once = all_reduce_s(boundary, c.tp, in_node, bandwidth, latency)
    return once * np.where(full, 6.0, 4.0)


def _context_s(c: Columns, tokens: Array) -> Array:
    """Context parallelism: keys and values pass a ring each pass, as far as attention does not hide them; a third
    pass returns their gradients (Ring Attention, arXiv 2310.01889, section 3). Half is taken for hidden."""
    in_node = np.clip(c.devices_per_node / c.tp, 1, c.cp)
    bandwidth = ring_bandwidth(c.cp, in_node, *_links(c))
    volume = tokens * (c.cp - 1) * 2 * c.kv_width / c.tp * c.compute_bytes
    return np.where(c.cp > 1, 0.5 * 3 * volume / bandwidth, 0.0)


def _send_s(c: Columns, boundary: Array) -> Array:
    """One stage's output to the next. Every device of a node sends at once through the node's ports. Megatron-LM and
    DeepSpeed send each value once and gather it within the tensor-parallel group (arXiv 2104.04473, section 4.1;
    `pipe/engine.py`, `pipe_partitioned`), which sequence parallelism spares. Both wait for the transfer.
    """
    across = c.tp * c.cp * c.dp >= c.devices_per_node
    per_device = np.where(across, c.inter_bandwidth / c.devices_per_node, c.intra_bandwidth)
    latency = np.where(across, c.inter_latency, c.intra_latency)
    in_node = np.minimum(c.tp, c.devices_per_node)
    bandwidth = ring_bandwidth(c.tp, in_node, *_links(c))
    again = np.where(c.sequence_parallel > 0, 0.0, gather_s(boundary, c.tp, in_node, bandwidth, c.intra_latency))
    return latency + boundary / c.tp / per_device + again


def _data_s(c: Columns, stages: Stages, slot: Array, backward: Array) -> Array:
    """Exposed seconds a step of data-parallel communication.

    DDP reduces buckets during the last backward pass (arXiv 2006.15704, section 3.2.3); Megatron-LM and DeepSpeed's
    stages 1 and 2 reduce after it, stage 1 gathers the updated parameters (arXiv 1910.02054, section 7.1); FSDP and
    ZeRO-3 gather parameters for each pass and scatter gradients, beside the compute of the neighbouring block
    (arXiv 2304.11277, section 3.3).
    """
    owned, blocks = rank_parameters(c, stages)
    # Gradients are exchanged by all ranks that hold the same parameters, those of context parallelism included.
    dp = c.dp * c.cp
    in_node = np.clip(np.floor(c.devices_per_node / c.tp), 1, dp)
    group = np.where((c.engine == FSDP) | (c.zero_stage == 3), c.shard, dp)
    shard_in_node = np.minimum(in_node, group)
    args = _links(c)
    bandwidth = ring_bandwidth(dp, in_node, *args)
    latency = np.where(dp > in_node, c.inter_latency, c.intra_latency)
    gradient_bytes = owned * c.gradient_bytes * c.compression
    m = c.grad_accum

    syncs = np.where((c.engine == DEEPSPEED) & (c.zero_stage >= 2), m, np.where(c.sync_every > 0, m, 1.0))
    num_buckets = np.maximum(np.ceil(gradient_bytes / np.maximum(c.bucket_bytes, 1.0)), 1.0)
    bucket = all_reduce_s(gradient_bytes / num_buckets, dp, in_node, bandwidth, latency)
    reduced = num_buckets * bucket
    # Torch's PowerSGD hook waits for the device after each bucket: nothing of it hides.
    overlaps = (c.engine == DDP) & (c.factor_rank == 0)
    hidden = np.where(overlaps, np.minimum(reduced - bucket, backward), 0.0)
    plain = syncs * (reduced - hidden * (1 - OVERLAP_SLOWDOWN) + squeezing_s(c, owned, c.bandwidth * BANDWIDTH_SHARE))
    # Stages 1 and 2 scatter and gather: as many bytes as an all-reduce, the gather in the parameters' type. DeepSpeed's
    # have all-reduced whole buckets since 2023 (`stage_1_and_2.py`, `use_multi_rank_bucket_allreduce`).
    scatter = num_buckets * gather_s(gradient_bytes / num_buckets, dp, in_node, bandwidth, latency)
    scatter = np.where((c.engine == DEEPSPEED) & (c.reduces_whole > 0), reduced, scatter)
    gathered = gather_s(owned * c.compute_bytes, dp, in_node, bandwidth, latency)
    # `BF16_Optimizer`, stage 1 with sums wider than the products, all-reduces whole sums and steps its part of them.
    whole_sums = (c.engine == DEEPSPEED) & (c.zero_stage == 1) & (c.gradient_bytes > c.compute_bytes)
    beside = (c.overlaps > 0) & ~whole_sums
    hidden = np.where(beside, np.minimum(scatter * (1 - 1 / num_buckets), backward), 0.0) * (1 - OVERLAP_SLOWDOWN)
    sharded = syncs * (np.where(whole_sums, reduced, scatter) - hidden) + gathered

    unit_bandwidth = ring_bandwidth(group, shard_in_node, *args)
    unit_latency = np.where(group > shard_in_node, c.inter_latency, c.intra_latency)
    per_layer = c.layer_parameters / c.tp
    units = np.where(c.engine == DEEPSPEED, ZERO_3_GATHERS, 1.0)
    gather = units * gather_s(per_layer * c.compute_bytes / units, group, shard_in_node, unit_bandwidth, unit_latency)
    gather = gather + offload.parameters_s(c, per_layer / group)  # what lies on the host comes up first
    # The second gathering may stay in a smaller group of neighbours.
    few = np.where(c.reshard < group, c.reshard, group)
    few_in_node = np.minimum(in_node, few)
    near = gather_s(
        per_layer * c.compute_bytes,
        few,
        few_in_node,
        ring_bandwidth(few, few_in_node, *args),
        np.where(few > few_in_node, c.inter_latency, c.intra_latency),
    )
    second = np.where(few < group, near, gather)
    scatter_unit = units * gather_s(
        per_layer * c.gradient_bytes / units, group, shard_in_node, unit_bandwidth, unit_latency
    )
    replicas = dp / group
    replicas_in_node = np.clip(np.floor(in_node / group), 1.0, replicas)
    across = all_reduce_s(
        per_layer * c.gradient_bytes / group,
        replicas,
        replicas_in_node,
        ring_bandwidth(replicas, replicas_in_node, *args),
        np.where(replicas > replicas_in_node, c.inter_latency, c.intra_latency),
    )
    layers = blocks / per_layer
    # FSDP2 keeps a block gathered from its recomputation to its backward pass; ZeRO-3 releases each module after every
    # pass of it, so that recomputing loads it once more (arXiv 2104.07857, section 4.1).
    again = np.where((c.engine == DEEPSPEED) & (c.full_checkpointing > 0), checkpointed_share(c), 0.0)
    gathered = np.where(c.zero_stage == 3, (1.0 + again) * gather + second, gather / m)
    reduce_times = np.where((c.sync_every > 0) | (c.engine == DEEPSPEED), 1.0, 1.0 / m)
    talk = layers * (gathered + reduce_times * (scatter_unit + across))
    ends = (owned - blocks) * (2 * c.compute_bytes + c.gradient_bytes) / unit_bandwidth * (group - 1) / group
    hidden = np.minimum(talk, slot) * np.where(c.engine == DEEPSPEED, c.prefetch, 1 - OVERLAP_SLOWDOWN)
    exposed = talk - hidden + gather + scatter_unit
    units_s = np.where((group > 1) | (c.parameters_on_host > 0), m * exposed + ends, 0.0)

    data = np.where((c.zero_stage >= 1) & (c.zero_stage <= 2), sharded, plain)
    data = np.where((c.engine == FSDP) | (c.zero_stage == 3), units_s, data)
    return np.where((dp > 1) | (c.parameters_on_host > 0), data, 0.0) + offload.gradients_s(c, owned / group)
