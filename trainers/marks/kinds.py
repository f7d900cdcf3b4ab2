"""Classifies a piece of a trace, first by the named range around it, then by the names of operations and kernels.

Names come from torch 2.11 to 2.13 on CPUs, and of cuBLAS, CUTLASS, NCCL, FlashAttention and Inductor on CUDA.
"""

import functools
import re
from collections.abc import Sequence

from trainers.marks.step import StepPhase
from trainers.records.sums import AXES, Axis, Kind


def range_of(phase: StepPhase) -> str:
    return f"layout: {phase}"


COUNTING, MICRO_STEP, SCHEDULE, OPTIMIZER_STEP = (range_of(phase) for phase in StepPhase)
"""Ranges that divide a step into the phases that the engine marks (`trainers/measuring/step_marks.py`)."""
LOSS, ATTENTION = "layout: loss", "layout: attention"
"""Ranges of modules outside compiled code, which has no ranges."""

EXCHANGE = "layout: exchange over "
"""Prefix of the range around a collective outside compiled code; the process group's description follows."""

_ALL_RANKS = "default_pg"
"""Torch's description of the default process group."""

COMPILED = "## Call CompiledFxGraph"
"""Prefix of the range around a compiled graph. On a CPU its fused loops have no names of their own."""

_TALKS = re.compile(r"nccl|rccl|^gloo:|_shot_all_reduce|multimem", re.IGNORECASE)
_SENDS = re.compile(r"send_?recv|^gloo:(send|recv)", re.IGNORECASE)
_OPTIMIZES = re.compile(r"^Optimizer\.|multi_tensor_apply.*adam|_fused_adam", re.IGNORECASE)
_LOSES = re.compile(r"cross_?entropy|nll_?loss|log_?softmax|logsumexp", re.IGNORECASE)
_ATTENDS = re.compile(r"scaled_?dot_?product|flash|fmha|sdpa|flex_attention|softmax", re.IGNORECASE)
_MULTIPLIES = re.compile(r"(aten|mkl|mkldnn|onednn)::_?(mkl_|scaled_)?(addmm|mm|addmv|mv|linear|matmul)(_\w+)?")
_MULTIPLIES_BATCHES = re.compile(r"aten::(bmm|baddbmm)(_\w+)?")
_PRODUCT_KERNEL = re.compile(
    r"gemm|gemv|nvjet|cutlass|xmma|cublas|splitk|s\d+_tensorop|triton_tem_fused_\w*mm", re.IGNORECASE
)
_OPERATION = re.compile(r"(?!autograd::|torch::|c10d::|_c10d_functional::|profiler::)[a-z_][a-z0-9_]*::\w")
"""Operations of a dispatcher's library, except operations that only wait for or enclose others."""


def computes(operation: str) -> bool:
    """Returns whether a CPU's operation is work itself, and not a frame around work, a wait, or Python."""
    return _is_operation(operation) or operation.startswith(COMPILED)


def kind_of(kernel: str, around: Sequence[str], *, forward: Sequence[str] = (), is_head: bool = False) -> Kind:
    """Returns the kind of a kernel, or of a piece of a CPU's operation.

    `around` are the names of the ranges and operations that enclose its launch, innermost last. `forward` are the names
    around the forward operation, if this is its backward pass. `is_head` marks a product over the vocabulary.
    """
    # On a CPU a thread waits within the exchange's range while a thread of gloo communicates.
    if _TALKS.search(kernel) or any(name.startswith(("gloo:", EXCHANGE)) for name in around):
        return "communication"
    implied = {_kind_by_name(name) for name in (kernel, *around)}
    if OPTIMIZER_STEP in around or "optimizer" in implied:
        return "optimizer"
    if LOSS in around or LOSS in forward or is_head or "loss" in implied:
        return "loss"
    inner = next((name for name in reversed(around) if _is_operation(name)), "")
    if _MULTIPLIES.fullmatch(inner):
        return "matmul"
    if ATTENTION in around or ATTENTION in forward or _MULTIPLIES_BATCHES.fullmatch(inner):
        return "attention"
    if "attention" in implied:
        return "attention"
    return "matmul" if _PRODUCT_KERNEL.search(kernel) else "other"


def axis_of(kernel: str, around: Sequence[str], description: str, default: str) -> Axis:
    """Returns the mesh axis of a piece of communication.

    `description` is its process group's in the trace; if it is "", the innermost range that names an exchange decides.
    `default` describes the default process group of all ranks; if it is "cp", the group carries gradients and shards
    too, and only a range identifies attention's exchange. Other transfers between two ranks belong to a pipeline,
    everything else to data parallelism: gradients, shards, norms over several axes.
    """
    name_from_range = next((name.removeprefix(EXCHANGE) for name in reversed(around) if name.startswith(EXCHANGE)), "")
    group = name_from_range if description in ("", _ALL_RANKS) and name_from_range else description
    if group == _ALL_RANKS:
        group = default if name_from_range or default != "cp" else "dp"
    axis = dict(zip(map(str, AXES), AXES, strict=True)).get(group, "dp")
    # NCCL's all-to-all of experts' rows is a send/recv kernel, as a pipeline's transfers are.
    if axis == "dp" and (_SENDS.search(kernel) or any(_SENDS.search(name) for name in around)):
        return "pp"
    return axis


@functools.cache  # a trace has few names, each a thousand times
def _kind_by_name(name: str) -> Kind | None:
    """Returns the kind that a name implies for everything inside its range; None for most names."""
    kinds: dict[Kind, re.Pattern[str]] = {"optimizer": _OPTIMIZES, "loss": _LOSES, "attention": _ATTENDS}
    return next((kind for kind, pattern in kinds.items() if pattern.search(name)), None)


@functools.cache
def _is_operation(name: str) -> bool:
    return _OPERATION.match(name) is not None


def is_product(operation: str) -> bool:
    """Returns whether an operation is a plain (not batched) matrix product."""
    return _MULTIPLIES.fullmatch(operation) is not None
