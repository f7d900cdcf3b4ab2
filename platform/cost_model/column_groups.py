"""The groups of `Columns`: the model, the layout, the devices, and the software that runs the layout.

A field is a float array of one common length, or a 0-d array where all points agree. Sizes are in elements, or in bytes
where named so, bandwidths in bytes per second, times in seconds.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from platform.cost_model import constants

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

ROUNDING = constants.words("features", "ROUNDING")
STEP_HOST_S = constants.number("host", "STEP_HOST_S")
SHARPNESS = constants.number("host", "SHARPNESS")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelColumns:
    """Sizes of the model and of its sequences, and the types that a recipe computes in."""

    layers: Array
    hidden: Array
    attention_width: Array
    """Width of the queries of all heads."""
    kv_width: Array
    heads: Array
    rotary: Array
    vocab: Array
    layer_parameters: Array
    """Parameters of a block, the mean over all."""
    last_product: Array
    """Parameters of a block's last product."""
    saved_weights: Array
    """Parameters of a block whose FP8 weights compiled code saves twice; see `engines.fsdp`."""
    embedding_parameters: Array
    """Parameters outside the blocks; tied ones count once."""
    table_parameters: Array
    """Parameters of one vocabulary table, a part of `embedding_parameters`."""
    tied: Array
    seq_len: Array
    global_batch: Array
    compute_bytes: Array
    gathered_bytes: Array
    """Bytes per block parameter that FSDP2 gathers: 1 where it is cast to FP8 before (torchao 0.18.0, `fsdp_utils.py`,
    `fsdp_pre_all_gather`), the mean where some are in NF4, else `compute_bytes`.
    """
    scales_loss: Array
    """1 where products are in fp16, which needs a scaled loss and an overflow check of the gradients."""
    state_bytes: Array
    stored_bytes: Array
    """Bytes of a stored parameter of the model, the mean over all: those of the states, unless adapters train beside
    frozen weights.
    """
    adapter_rank: Array
    """Rank of the adapters that train in place of the model's own parameters; 0 where these train."""
    adapted_layers: Array
    """Linear layers of a block that have adapters."""
    adapted_inputs: Array
    adapted_outputs: Array
    """Widths of these layers' inputs and of their outputs, summed over a block."""
    quantised_weights: Array
    """Weights of a block that are in NF4 and dequantised for each product."""
    largest_quantised: Array
    """Weights of the largest of these layers."""
    moments: Array
    """Optimizer states per parameter: 2 for Adam, 0 for Adafactor's factored ones."""
    gradient_bytes: Array
    """Bytes per element of an exchanged gradient."""
    hidden_gathers: Array
    """Share of ZeRO-3's communication that compute hides; see `features.PREFETCH`."""
    compression: Array
    """Share of a gradient's bytes that is exchanged."""
    factor_rank: Array
    """Rank of PowerSGD's factors; 0 where gradients are not factored."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutColumns:
    """Degrees, recomputation, kernels and batch of a layout, and what its engine does."""

    engine: Array
    """Code of the engine, see `engines.code_of`."""
    zero_stage: Array
    shard: Array
    """Number of ranks that share one copy of the tensors that the ZeRO stage shards; it includes context parallelism's
    ranks.
    """
    largest_blocks: Array
    """Blocks of the pipeline rank that has most, 0 where the split is not known; see `mesh.stages_of`."""
    first_blocks: Array
    last_blocks: Array
    sequence_parallel: Array
    sync_every: Array
    full_checkpointing: Array
    """1 where whole blocks are recomputed: all of them, or every `checkpoint_every`-th."""
    selective_checkpointing: Array
    """1 where each block recomputes all except products and attention."""
    checkpoint_every: Array
    """Distance between fully checkpointed blocks; 1 for all of them."""
    budget: Array
    """Share of a block's activations that compiled code keeps; 1 without a budget."""
    states_on_host: Array
    """1 where the optimizer's states are in host memory and the optimizer steps there."""
    parameters_on_host: Array
    """1 where the parameters are in host memory too."""
    bucket_bytes: Array
    flash: Array
    """Rate of fused attention relative to causal FlashAttention; 0 for eager attention."""
    mask_bytes: Array
    """Bytes of the attention mask of one sequence, where each sequence has its own mask."""
    wide_softmax: Array
    """1 where eager attention computes its softmax in fp32, 0 where it uses the type of the scores."""
    scales_scores: Array
    """1 where eager attention scales its scores in a pass, 0 where the product that adds the position bias does so."""
    power_activation: Array
    """1 where the eager activation takes a power, which autocast computes in fp32."""
    fused: Array
    """1 where element-wise operations are fused by hand or compiler, 0 for eager execution."""
    own_mesh: Array
    """1 where this project's trainers cut the model over tensor-parallel ranks and stages (`trainers/mesh`), whose
    collectives and tensors are counted one by one; 0 where published software does, of which volumes are known."""
    fused_softmax: Array
    """1 where eager attention's softmax is one kernel."""
    compiled_calls: Array
    """Calls of compiled code per block and pass: 1 where each block is compiled by itself, less for the whole model."""
    logit_bytes: Array
    """Bytes per logit that the loss holds at its peak; see `kernels.LOGIT_BYTES`."""
    pads_vocabulary: Array
    """1 where the head's product is padded to an aligned width."""
    chunked_loss: Array
    activation_forward: Array
    activation_backward: Array
    """Reads and writes of the inner width in an activation's passes; see `kernels.activation_passes`."""
    inner_copies: Array
    """Tensors of the feed-forward's inner width that a block saves; see `kernels.inner_copies`."""
    grouped_experts: Array
    """1 where the products of all experts of a block are one, 0 where they are computed expert by expert."""
    micro_batch: Array
    grad_accum: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceColumns:
    """Rates, memory and links of a cluster's devices."""

    matmul_flops: Array
    """Sustained rate of large products: the precision's peak x the device's share."""
    head_slowdown: Array
    """Sustained rate of large products over that of the head's products, which stay in 16 bits under fp8; 1 elsewhere.
    """
    cast_bytes: Array
    """Bytes that casting one value of a product's left operand to fp8 moves; 0 in other precisions."""
    tile_rows: Array
    half_depth: Array
    """Depth at which a tile's start and end cost as much as its products; `tile_rows` are the rows of a tile."""
    plain_flops: Array
    """Sustained rate of products that cannot use the matrix units."""
    peak_flops: Array
    flash_flops: Array
    """Sustained rate of causal FlashAttention at the model's head width over long sequences."""
    flash_half_length: Array
    """Sequence length at which fused attention reaches half its rate."""
    bandwidth: Array
    host_bandwidth: Array
    """Achieved bandwidth of the link between a device and its host, in one direction."""
    units: Array
    capacity_gib: Array
    context_gib: Array
    devices_per_node: Array
    intra_bandwidth: Array
    intra_latency: Array
    inter_bandwidth: Array
    """Bandwidth of a whole node, in one direction."""
    group_bandwidth: Array
    """Part of `inter_bandwidth` that a single process group reaches."""
    inter_latency: Array
    inter_hop: Array
    """Latency of one step of a ring from node to node."""
    spread: Array
    """Deviation of the cluster in log space: from run to run, and of a device without a measured run."""
    link_sigma: Array
    """Log deviation of the time between nodes whose network is not known; 0 where it is known, and within one node."""


def ours(value: float) -> Any:
    """Returns a field that is `value` for this project's own trainers."""
    return dataclasses.field(default_factory=lambda: np.asarray(value))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """Costs and habits of the software that its layouts do not state; by default those of this project's trainers."""

    repeats_core_alone: Array = ours(0.0)
    """1 where selective checkpointing recomputes only the attention core (Megatron-LM)."""
    checkpoint_blocks: Array = ours(1.0)
    """Blocks that one full checkpoint spans: only the first block's input is kept, and they are recomputed together."""
    checkpoint_device_share: Array = ours(1.0)
    """Share of a checkpoint's saved data that stays on the device: below 1 where a block's input is sharded or
    offloaded, or where selective checkpointing keeps only some products.
    """
    unfused_norm_passes: Array = ours(0.0)
    """Reads and writes of the hidden width that unfused norms make in the forward pass beyond those of a fused norm."""
    unfused_norm_bytes: Array = ours(0.0)
    """Bytes per value of the hidden width that unfused norms save beyond those of a fused norm."""
    copies_attention: Array = ours(0.0)
    """1 where fused attention's output is copied for the projection of several sequences; the copy is saved besides
    attention's own output.
    """
    keeps_casts: Array = ours(0.0)
    """1 where FP8 products keep the casts of their inputs for the backward pass, and not the inputs."""
    saves_gathered: Array = ours(1.0)
    """Share that is saved of the inputs that sequence parallelism gathered for column-parallel products: 1 where
    autograd does, as for any linear layer, 0 where a stack's own autograd function decides.
    """
    keeps_gathered: Array = ours(0.0)
    """1 where such a function keeps the gathered inputs, 0 where it gathers again in the backward pass."""
    block_host: Array = ours(0.0)
    """Host seconds of a block's forward pass through the modules of a published stack, in place of counted launches; 0
    where launches are counted."""
    block_host_backward: Array = ours(0.0)
    step_host: Array = ours(STEP_HOST_S)
    """Host seconds of the optimizer's step; twice as many where an engine wraps torch's optimizer in its own."""
    host_skew: Array = ours(0.0)
    """Host seconds that a tensor-parallel collective waits for its slowest rank, per doubling of the ranks."""
    host_pipe: Array = ours(0.0)
    """Additional host seconds of such a collective per rank where a pipeline spans several nodes."""
    waits_each_pass: Array = ours(0.0)
    """1 where the host waits for its device before and after each pass of a micro-batch."""
    sharpness: Array = ours(SHARPNESS)
    """Order of the norm by which host's and device's time make a pass; see `host.SHARPNESS`."""
    exchanges_heads: Array = ours(0.0)
    """1 where context parallelism exchanges heads by an all-to-all, 0 where keys and values go round a ring."""
    merges_eagerly: Array = ours(0.0)
    """1 where a ring's partial results are merged by a kernel for each operation."""
    tensor_overlap: Array = ours(0.0)
    """Share of tensor parallelism's communication that overlaps with its products."""
    all_reduced_bytes: Array = ours(0.0)
    """Bytes of a gradient that ZeRO-1 all-reduces, whole, before each rank steps on its part; 0 where gradients are
    reduce-scattered in their own type.
    """
    overlaps_reduction: Array = ours(0.0)
    """1 where Megatron's engine reduces gradients beside the last backward pass; see `engines.megatron`."""
    overlaps_gather: Array = ours(0.0)
    """1 where it gathers parameters beside the next step's first forward pass."""
    stated_overlap: Array = ours(0.0)
    """1 where a row states that data parallelism's exchange runs beside compute, -1 where it states that nothing of it
    does, 0 where it says neither.
    """
    fixed_buckets: Array = ours(0.0)
    """1 where buckets of gradients have the stated size on any number of ranks."""
    broadcasts_parts: Array = ours(0.0)
    """1 where each owner of a part of the parameters broadcasts it, one after the other, in place of a gather."""
    reduces_by_hooks: Array = ours(0.0)
    """1 where hooks all-reduce gradients during the last backward pass at stage 0; see `engines.megatron`."""
    cuts_by_cost: Array = ours(0.0)
    """1 where a pipeline is split by the blocks' arithmetic, in which the head counts as several blocks."""
    wants_warm_up: Array = ours(0.0)
    """1 where a pipeline does not start with fewer micro-batches than its warm-up has: its stages less one."""
    rate_sigma: Array = ours(0.0)
    """Log deviation of the rate of products where the software's is not known."""
    host_sigma: Array = ours(0.0)
    """Log deviation of the host's time where it is estimated from the count of kernels, not measured."""
    stack_sigma: Array = ours(0.0)
    """Log deviation of the step time that remains after a stack's evidence."""
    stall_exchange_s: Array = ours(0.0)
    """Seconds of an exchange between pipeline stages in a step that stalls; see `stalls.stalled_s`."""
    stall_chance: Array = ours(0.0)
    """Chance per node that a step which waits for all nodes stalls; see `stalls.stall_chance`."""
    stall_chance_data: Array = ours(0.0)
    """The same where only data parallelism spans the nodes."""
    loss_moved: Array = ours(0.0)
    """Bytes per logit that a stack's loss reads and writes in both passes; 0 where each byte of `logit_bytes` is
    written once and read once.
    """
    metric_losses: Array = ours(0.0)
    """Number of further computations of torch's loss, without gradients, for the trainer's metrics."""
    eager_softmax: Array = ours(0.0)
    """1 where a stack's eager attention casts the scores to fp32 for a softmax of its own kernel, which saves them."""
    dropout: Array = ours(0.0)
    blocking: Array = ours(0.0)
    """1 where the host waits for each kernel that it launches (CUDA_LAUNCH_BLOCKING=1)."""
    reduces_whole: Array = ours(1.0)
    """1 where DeepSpeed's stages 1 and 2 all-reduce whole buckets of gradients, 0 where they reduce each gradient to
    its owner.
    """
    rounding: Array = ours(ROUNDING["expandable"])
    """Share of states and gradients that the allocator holds in addition; see `ROUNDING`."""
    transient_rounding: Array = ours(ROUNDING["expandable"])
    """Share of tensors that exist only within a step that the allocator holds in addition."""
