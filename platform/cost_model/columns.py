"""`Columns`: layout x batch points as columns of numbers, so that a million of them are predicted by array formulas.

A field is a float array of one common length, or a 0-d array where all points agree: formulas broadcast, so shared
values are computed once.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trainers.spec.axis import axes_of, choices_of
from trainers.spec.blocks import KINDS
from trainers.spec.layout import Layout

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

CHUNK_LOGITS = 2.0**30
"""Logits of a chunk in `trainers/kernels/head.py`, which imports torch."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """One row per point. Sizes are in elements, or in bytes where named so, bandwidths in bytes per second, times in
    seconds.
    """

    layers: Array
    hidden: Array
    attention_width: Array
    """Width of the queries of all heads."""
    kv_width: Array
    heads: Array
    rotary: Array
    vocab: Array
    blocks: Mapping[str, Array]
    """Shares of the model's blocks by their costs, and sizes that only some kinds of blocks have; see `BLOCK_COLUMNS`.
    """
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

    engine: Array
    """Code of the engine, see `engines.code_of`."""
    zero_stage: Array
    shard: Array
    """Number of ranks that share one copy of the tensors that the ZeRO stage shards; it includes context parallelism's
    ranks.
    """
    dp: Array
    tp: Array
    pp: Array
    cp: Array
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
    repeats_core_alone: Array
    """1 where selective checkpointing recomputes only the attention core (Megatron-LM)."""
    checkpoint_every: Array
    """Distance between fully checkpointed blocks; 1 for all of them."""
    budget: Array
    """Share of a block's activations that compiled code keeps; 1 without a budget."""
    states_on_host: Array
    """1 where the optimizer's states are in host memory and the optimizer steps there."""
    parameters_on_host: Array
    """1 where the parameters are in host memory too."""
    bucket_bytes: Array
    axes: Mapping[str, Array]
    """Values of `ENGINE_AXES` in the layouts; for words, the `code_of` each."""
    checkpoint_blocks: Array
    """Blocks that one full checkpoint spans: only the first block's input is kept, and they are recomputed together."""
    checkpoint_device_share: Array
    """Share of a checkpoint's saved data that stays on the device: below 1 where a block's input is sharded or
    offloaded, or where selective checkpointing keeps only some products.
    """
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
    unfused_norm_passes: Array
    """Reads and writes of the hidden width that unfused norms make in the forward pass beyond those of a fused norm."""
    unfused_norm_bytes: Array
    """Bytes per value of the hidden width that unfused norms save beyond those of a fused norm."""
    copies_attention: Array
    """1 where fused attention's output is copied for the projection of several sequences; the copy is saved besides
    attention's own output.
    """
    saves_gathered: Array
    """Share that is saved of the inputs that sequence parallelism gathered for column-parallel products: 1 where
    autograd does, as for any linear layer, 0 where a stack's own autograd function decides.
    """
    keeps_gathered: Array
    """1 where such a function keeps the gathered inputs, 0 where it gathers again in the backward pass."""
    block_host: Array
    """Host seconds of a block's forward pass through the modules of a published stack, in place of counted launches; 0
    where launches are counted."""
    block_host_backward: Array
    step_host: Array
    """Host seconds of the optimizer's step; twice as many where an engine wraps torch's optimizer in its own."""
    host_skew: Array
    """Host seconds that a tensor-parallel collective waits for its slowest rank, per doubling of the ranks."""
    host_pipe: Array
    """Additional host seconds of such a collective per rank where a pipeline spans several nodes."""
    waits_each_pass: Array
    """1 where the host waits for its device before and after each pass of a micro-batch."""
    sharpness: Array
    """Order of the norm by which host's and device's time make a pass; see `host.SHARPNESS`."""
    own_mesh: Array
    """1 where this project's trainers cut the model over tensor-parallel ranks and stages (`trainers/mesh`), whose
    collectives and tensors are counted one by one; 0 where published software does, of which volumes are known."""
    tensor_overlap: Array
    """Share of tensor parallelism's communication that overlaps with its products."""
    all_reduced_bytes: Array
    """Bytes of a gradient that ZeRO-1 all-reduces, whole, before each rank steps on its part; 0 where gradients are
    reduce-scattered in their own type.
    """
    reduces_by_hooks: Array
    """1 where hooks all-reduce gradients during the last backward pass at stage 0; see `engines.megatron`."""
    cuts_by_cost: Array
    """1 where a pipeline is split by the blocks' arithmetic, in which the head counts as several blocks."""
    wants_warm_up: Array
    """1 where a pipeline does not start with fewer micro-batches than its warm-up has: its stages less one."""
    rate_sigma: Array
    """Log deviation of the rate of products where the software's is not known."""
    host_sigma: Array
    """Log deviation of the host's time where it is estimated from the count of kernels, not measured."""
    stack_sigma: Array
    """Log deviation of the step time that remains after a stack's evidence."""
    stall_exchange_s: Array
    """Seconds of an exchange between pipeline stages in a step that stalls; see `stalls.stalled_s`."""
    stall_chance: Array
    """Chance per node that a step which waits for all nodes stalls; see `stalls.stall_chance`."""
    fused_softmax: Array
    """1 where eager attention's softmax is one kernel."""
    compiled_calls: Array
    """Calls of compiled code per block and pass: 1 where each block is compiled by itself, less for the whole model."""
    loss_moved: Array
    """Bytes per logit that a stack's loss reads and writes in both passes; 0 where each byte of `logit_bytes` is
    written once and read once.
    """
    logit_bytes: Array
    """Bytes per logit that the loss holds at its peak; see `kernels.LOGIT_BYTES`."""
    pads_vocabulary: Array
    """1 where the head's product is padded to an aligned width."""
    chunked_loss: Array
    metric_losses: Array
    """Number of further computations of torch's loss, without gradients, for the trainer's metrics."""
    activation_forward: Array
    activation_backward: Array
    """Reads and writes of the inner width in an activation's passes; see `kernels.activation_passes`."""
    inner_copies: Array
    """Tensors of the feed-forward's inner width that a block saves; see `kernels.inner_copies`."""
    dropout: Array
    blocking: Array
    """1 where the host waits for each kernel that it launches (CUDA_LAUNCH_BLOCKING=1)."""
    micro_batch: Array
    grad_accum: Array

    compute_bytes: Array
    gathered_bytes: Array
    """Bytes per block parameter that FSDP2 gathers: 1 where it is cast to FP8 before (torchao 0.18.0, `fsdp_utils.py`,
    `fsdp_pre_all_gather`), else `compute_bytes`.
    """
    scales_loss: Array
    """1 where products are in fp16, which needs a scaled loss and an overflow check of the gradients."""
    state_bytes: Array
    moments: Array
    """Optimizer states per parameter: 2 for Adam, 0 for Adafactor's factored ones."""
    gradient_bytes: Array
    """Bytes per element of an exchanged gradient."""
    hidden_gathers: Array
    """Share of ZeRO-3's communication that compute hides; see `features.PREFETCH`."""
    reduces_whole: Array
    """1 where DeepSpeed's stages 1 and 2 all-reduce whole buckets of gradients, 0 where they reduce each gradient to
    its owner.
    """
    compression: Array
    """Share of a gradient's bytes that is exchanged."""
    factor_rank: Array
    """Rank of PowerSGD's factors; 0 where gradients are not factored."""

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
    rounding: Array
    """Share of states and gradients that the allocator holds in addition; see `stack_columns.ROUNDING`."""
    transient_rounding: Array
    """Share of tensors that exist only within a step that the allocator holds in addition."""
    spread: Array
    """Deviation of the cluster in log space: from run to run, and of a device without a measured run."""
    link_sigma: Array
    """Log deviation of the time between nodes whose network is not known; 0 where it is known, and within one node."""

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> "Columns":
        """Returns the columns of `arrays`, which has every name of `FIELDS`."""
        own, blocks, axes = ({name: arrays[name] for name in names} for names in _GROUPS)
        return cls(**own, blocks=blocks, axes=axes)

    def arrays(self) -> dict[str, Array]:
        """Returns every array by its name in `FIELDS`."""
        return {**{name: getattr(self, name) for name in _OWN_FIELDS}, **self.blocks, **self.axes}

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of all arrays."""
        return np.broadcast_shapes(*(value.shape for value in self.arrays().values()))

    @property
    def tokens_per_step(self) -> Array:
        """Tokens in one optimizer step, over all ranks."""
        return self.global_batch * self.seq_len

    def flat(self) -> "Columns":
        """Returns a grid with one row per point; arrays that all points share stay as they are."""
        shape = self.shape
        return self._each(lambda value: value if value.ndim == 0 else np.broadcast_to(value, shape).reshape(-1))

    def take(self, index: Any) -> "Columns":
        """Returns the rows (the last axis) that `index`, a mask, a slice or positions, selects; shared arrays stay as
        they are.
        """
        return self._each(lambda value: value[..., index] if value.ndim == 1 or value.shape[-1:] > (1,) else value)

    def _each(self, change: Callable[[Array], Array]) -> "Columns":
        return Columns.of({name: change(value) for name, value in self.arrays().items()})


def checkpointed_share(c: Columns) -> Array:
    """Returns the share of the blocks that full checkpointing recomputes."""
    return np.ceil(c.layers / c.checkpoint_every) / c.layers


ENGINE_AXES = tuple(name for name, declared in axes_of(Layout).items() if declared.of_some_engines)
"""Axes that have a meaning only in engines whose rules name them; the engines' costs read them by name."""
BLOCK_COLUMNS = tuple(dict.fromkeys(name for kind in KINDS for name in (f"{kind.costs}_share", *kind.sizes)))
"""The share of each kind's costs, and the sizes that kinds declare."""
_OWN_FIELDS = tuple(field.name for field in dataclasses.fields(Columns) if field.name not in ("axes", "blocks"))
_GROUPS = (_OWN_FIELDS, BLOCK_COLUMNS, ENGINE_AXES)
FIELDS = tuple(name for names in _GROUPS for name in names)
"""Names of all arrays."""
_in_order = operator.itemgetter(*FIELDS)


def code_of(axis: str, word: str) -> int:
    """Returns the number that encodes `word`, a value of `axis`, in `Columns.axes`."""
    return choices_of(Layout)[axis].index(word)


def from_rows(rows: Sequence[Mapping[str, float]]) -> Columns:
    """Returns the columns of rows that name every field."""
    values = np.array([_in_order(row) for row in rows], dtype=np.float64).reshape(len(rows), len(FIELDS))
    return Columns.of(dict(zip(FIELDS, np.ascontiguousarray(values.T), strict=True)))
