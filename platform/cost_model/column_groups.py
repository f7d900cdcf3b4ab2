"""The groups of `Columns`: the model, the layout, the devices, and the software that runs the layout.

A field is a float array with one value per point, or a 0-d array if all points agree. Sizes are in elements, or in
bytes if the name says so; bandwidths in bytes per second, times in seconds.
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
    """Sizes of the model and its sequences, and the types in which a recipe computes."""

    layers: Array
    hidden: Array
    attention_width: Array
    """Width of the queries of all heads."""
    kv_width: Array
    heads: Array
    rotary: Array
    vocab: Array
    layer_parameters: Array
    """Parameters of a block, mean over all blocks."""
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
    """Bytes per block parameter that FSDP2 gathers: 1 if parameters are cast to FP8 first (torchao 0.18.0,
    `fsdp_utils.py`, `fsdp_pre_all_gather`), a mean if some are in NF4, else `compute_bytes`.
    """
    scales_loss: Array
    """1 for products in fp16, which need a scaled loss and an overflow check of the gradients."""
    state_bytes: Array
    stored_bytes: Array
    """Bytes per stored model parameter, mean over all: `state_bytes`, except for frozen weights under adapters."""
    adapter_rank: Array
    """Rank of the adapters, which train instead of the model's parameters; 0 without adapters."""
    adapted_layers: Array
    """Number of linear layers of a block with adapters."""
    adapted_inputs: Array
    adapted_outputs: Array
    """Input and output widths of the layers with adapters, each summed over a block."""
    quantised_weights: Array
    """Number of weights of a block that are in NF4 and are dequantised for each product."""
    largest_quantised: Array
    """Number of weights of the largest NF4 layer."""
    moments: Array
    """Optimizer states per parameter: 2 for Adam, 0 for Adafactor's factored states."""
    gradient_bytes: Array
    """Bytes per element of an exchanged gradient."""
    hidden_gathers: Array
    """Share of ZeRO-3's communication that compute hides; see `features.PREFETCH`."""
    compression: Array
    """Share of a gradient's bytes that is exchanged."""
    factor_rank: Array
    """Rank of PowerSGD's factors; 0 without factored gradients."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutColumns:
    """Degrees, recomputation, kernels and batch of a layout, and the behaviour of its engine."""

    engine: Array
    """Code of the engine; see `engines.code_of`."""
    zero_stage: Array
    shard: Array
    """Number of ranks (also context-parallel ones) that share one copy of the tensors that the ZeRO stage shards."""
    largest_blocks: Array
    """Blocks of the pipeline rank with the most; 0 if the split is unknown. See `mesh.stages_of`."""
    first_blocks: Array
    last_blocks: Array
    sequence_parallel: Array
    sync_every: Array
    full_checkpointing: Array
    """1 if whole blocks are recomputed: all of them, or every `checkpoint_every`-th."""
    selective_checkpointing: Array
    """1 if each block recomputes everything except products and attention."""
    checkpoint_every: Array
    """Distance between fully checkpointed blocks; 1 if all are."""
    budget: Array
    """Share of a block's activations that compiled code keeps; 1 without a budget."""
    states_on_host: Array
    """1 if the optimizer's states are in host memory and the optimizer steps on the host."""
    parameters_on_host: Array
    """1 if the parameters are also in host memory."""
    moments_on_host: Array
    """1 if AdamW's moments alone are in host memory and pass through the device's step."""
    bucket_bytes: Array
    flash: Array
    """Rate of fused attention relative to causal FlashAttention; 0 for eager attention."""
    mask_bytes: Array
    """Bytes of one sequence's attention mask, if each sequence has its own mask."""
    wide_softmax: Array
    """1 if eager attention computes its softmax in fp32, 0 if in the type of the scores."""
    scales_scores: Array
    """1 if eager attention scales its scores in a separate pass, 0 if the product that adds the position bias does."""
    power_activation: Array
    """1 if the eager activation computes a power, which autocast computes in fp32."""
    fused: Array
    """1 if element-wise operations are fused by hand or by a compiler, 0 for eager execution."""
    own_mesh: Array
    """1 if this project's trainers split the model over tensor-parallel ranks and stages (`trainers/mesh`); their
    collectives and tensors are counted individually. 0 for published software, of which only volumes are known.
    """
    fused_softmax: Array
    """1 if the softmax of eager attention is one kernel."""
    compiled_calls: Array
    """Calls of compiled code per block and pass: 1 if each block is compiled separately, less for the whole model."""
    logit_bytes: Array
    """Bytes per logit that the loss holds at its peak; see `kernels.LOGIT_BYTES`."""
    pads_vocabulary: Array
    """1 if the head's product is padded to an aligned width."""
    chunked_loss: Array
    activation_forward: Array
    activation_backward: Array
    """Reads and writes of the inner width in the activation's passes; see `kernels.activation_passes`."""
    inner_copies: Array
    """Saved tensors of the feed-forward's inner width per block; see `kernels.inner_copies`."""
    grouped_experts: Array
    """1 if all experts of a block are computed in one grouped product, 0 if expert by expert."""
    micro_batch: Array
    grad_accum: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceColumns:
    """Rates, memory and links of a cluster's devices."""

    matmul_flops: Array
    """Sustained rate of large products: the precision's peak x the device's share."""
    head_slowdown: Array
    """Sustained rate of large products divided by that of the head's products (16 bits, also under fp8); else 1."""
    cast_bytes: Array
    """Bytes moved to cast one value of a product's left operand to fp8; 0 in other precisions."""
    tile_rows: Array
    half_depth: Array
    """Product depth at which a tile's start and end cost as much as its products; a tile has `tile_rows` rows."""
    plain_flops: Array
    """Sustained rate of products that cannot use the matrix units."""
    peak_flops: Array
    power_share: Array
    """Mean rate of the matrix units over a block, as a share of `matmul_flops`, above which the power cap lowers
    clocks; infinite if unknown.
    """
    flash_flops: Array
    """Sustained rate of causal FlashAttention at the model's head width over long sequences."""
    flash_half_length: Array
    """Sequence length at which fused attention reaches half of its rate."""
    bandwidth: Array
    host_bandwidth: Array
    """Achieved bandwidth of the link between a device and its host, one direction."""
    units: Array
    capacity_gib: Array
    context_gib: Array
    devices_per_node: Array
    intra_bandwidth: Array
    intra_latency: Array
    inter_bandwidth: Array
    """Bandwidth of a whole node, one direction."""
    group_bandwidth: Array
    """Part of `inter_bandwidth` that a single process group reaches."""
    inter_latency: Array
    inter_hop: Array
    """Latency of one step of a ring from node to node."""
    spread: Array
    """Log deviation of the cluster's step times: between runs, and for a device without a measured run."""
    link_sigma: Array
    """Log deviation of the time between nodes if the network is unknown; 0 if it is known, and within one node."""


def ours(value: float) -> Any:
    return dataclasses.field(default_factory=lambda: np.asarray(value))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """Costs and behaviour of the software that its layouts do not state; defaults are this project's trainers."""

    repeats_core_alone: Array = ours(0.0)
    """1 if selective checkpointing recomputes only the attention core (Megatron-LM)."""
    checkpoint_blocks: Array = ours(1.0)
    """Blocks per full checkpoint: only the first block's input is kept, and all are recomputed together."""
    checkpoint_device_share: Array = ours(1.0)
    """Share of a checkpoint's saved data that stays on the device: below 1 if a block's input is sharded or offloaded,
    or if selective checkpointing keeps only some products.
    """
    unfused_norm_passes: Array = ours(0.0)
    """Additional reads and writes of the hidden width by unfused norms in the forward pass, relative to a fused one."""
    unfused_norm_bytes: Array = ours(0.0)
    """Additional bytes per hidden value saved by unfused norms, compared with a fused norm."""
    copies_attention: Array = ours(0.0)
    """1 if fused attention's output is copied for the projection of several sequences, and the copy is saved too."""
    keeps_casts: Array = ours(0.0)
    """1 if FP8 products keep the casts of their inputs for the backward pass instead of the inputs."""
    saves_gathered: Array = ours(1.0)
    """Saved share of the inputs that sequence parallelism gathers for column-parallel products: 1 if autograd saves
    them like those of any linear layer, 0 if the stack's own autograd function decides.
    """
    keeps_gathered: Array = ours(0.0)
    """1 if the stack's autograd function keeps the gathered inputs, 0 if it gathers again in the backward pass."""
    block_host: Array = ours(0.0)
    """Host seconds of a block's forward pass through a published stack's modules, used instead of counted launches; 0
    if launches are counted.
    """
    block_host_backward: Array = ours(0.0)
    step_host: Array = ours(STEP_HOST_S)
    """Host seconds of the optimizer's step; doubled if an engine wraps torch's optimizer."""
    host_skew: Array = ours(0.0)
    """Host seconds that a tensor-parallel collective waits for its slowest rank, per doubling of the ranks."""
    host_pipe: Array = ours(0.0)
    """Additional host seconds of a tensor-parallel collective per rank if a pipeline spans several nodes."""
    waits_each_pass: Array = ours(0.0)
    """1 if the host waits for its device before and after each pass of a micro-batch."""
    sharpness: Array = ours(SHARPNESS)
    """Order of the norm that combines the host's and the device's time of a pass; see `host.SHARPNESS`."""
    exchanges_heads: Array = ours(0.0)
    """1 where context parallelism exchanges heads by an all-to-all, 0 where keys and values go round a ring."""
    merges_eagerly: Array = ours(0.0)
    """1 where a ring's partial results are merged by a kernel for each operation."""
    tensor_overlap: Array = ours(0.0)
    """Share of tensor parallelism's communication that overlaps with its products."""
    gathers_again: Array = ours(0.0)
    """1 if the backward pass gathers the inputs of sequence parallelism's first products again."""
    all_reduced_bytes: Array = ours(0.0)
    """Bytes per gradient in ZeRO-1's all-reduce of whole gradients, before each rank updates its part; 0 if gradients
    are reduce-scattered in their own type.
    """
    overlaps_reduction: Array = ours(0.0)
    """1 if Megatron's engine reduces gradients during the last backward pass; see `engines.megatron`."""
    overlaps_gather: Array = ours(0.0)
    """1 if Megatron's engine gathers parameters during the next step's first forward pass."""
    stated_overlap: Array = ours(0.0)
    """1 if a row states that the data-parallel exchange overlaps with compute, -1 if it states that nothing overlaps, 0
    if it states neither.
    """
    fixed_buckets: Array = ours(0.0)
    """1 if gradient buckets keep the stated size on any number of ranks."""
    broadcasts_parts: Array = ours(0.0)
    """1 if the owners of the parameters' parts broadcast them one after the other, instead of a gather."""
    reduces_by_hooks: Array = ours(0.0)
    """1 if hooks all-reduce gradients during the last backward pass at stage 0; see `engines.megatron`."""
    cuts_by_cost: Array = ours(0.0)
    """1 if a pipeline is split by the blocks' arithmetic, in which the head counts as several blocks."""
    wants_warm_up: Array = ours(0.0)
    """1 if a pipeline needs at least as many micro-batches as its warm-up: its stages minus one."""
    rate_sigma: Array = ours(0.0)
    """Log deviation of the rate of products if the software's rate is unknown."""
    host_sigma: Array = ours(0.0)
    """Log deviation of the host's time if it is estimated from the number of kernels."""
    stack_sigma: Array = ours(0.0)
    """Log deviation of the step time that remains for the stack after its own measurements."""
    stall_exchange_s: Array = ours(0.0)
    """Seconds of an exchange between pipeline stages in a step that stalls; see `stalls.stalled_s`."""
    stall_chance: Array = ours(0.0)
    """Probability per node that a step which waits for all nodes stalls; see `stalls.stall_chance`."""
    stall_chance_data: Array = ours(0.0)
    """`stall_chance` if only data parallelism spans the nodes."""
    loss_moved: Array = ours(0.0)
    """Bytes per logit that a stack's loss moves in both passes; 0: one write and one read of each of `logit_bytes`."""
    metric_losses: Array = ours(0.0)
    """Number of additional computations of torch's loss, without gradients, for the trainer's metrics."""
    eager_softmax: Array = ours(0.0)
    """1 if a stack's eager attention casts the scores to fp32 for its own softmax kernel, which saves them."""
    dropout: Array = ours(0.0)
    blocking: Array = ours(0.0)
    """1 if the host waits for each kernel that it launches (CUDA_LAUNCH_BLOCKING=1)."""
    reduces_whole: Array = ours(1.0)
    """1 if DeepSpeed's stages 1 and 2 all-reduce whole gradient buckets, 0 if they reduce each one to its owner."""
    rounding: Array = ours(ROUNDING["expandable"])
    """Additional share of states and gradients that the allocator holds; see `ROUNDING`."""
    transient_rounding: Array = ours(ROUNDING["expandable"])
    """Additional share of temporary tensors within a step that the allocator holds."""
