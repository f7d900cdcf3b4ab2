"""Compiled code with static shapes: each micro-batch has its own graph, and dynamo must not fall back silently.

Compiled code is reused: inductor caches it on disk in a user's folder (`torchinductor_USER` in the system's temporary
folder, or TORCHINDUCTOR_CACHE_DIR), so a node compiles a block once for all trials.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

BACKEND = "inductor"
"""Backend of torch.compile. The contract test changes it on several ranks to one that only traces, because it tests
engines and not code generation.
"""
_MAX_GRAPHS = 64
"""Largest number of graphs per function: a ladder's micro-batches, with and without gradients. Dynamo's default is 8.
"""
_LONGEST_UNROLLED = 16
"""Longest sum that becomes additions of whole rows. A kernel that reduces the values of few rows reads 64 bytes of each
at a time: the sum over 8 experts of Qwen3-30B-A3B took 6.5 times as long as its rows take to read
(docs/lab/kernels.csv#experts-traced.1). Inductor's default is 7.
"""
_WRAPPED = "_torchdynamo_orig_callable"


def compile_forward(module: nn.Module) -> None:
    """Compiles a module's `forward` in place; code around it, such as FSDP2's hooks, stays uncompiled. Blocks share
    compiled code, because dynamo does not guard on the module.
    """
    module.forward = static(module.forward)


def static(function: Callable[..., Any], *, any_size: bool = False) -> Any:
    """Returns `function` compiled, with a graph for each shape, or one graph for all shapes with `any_size`. A graph
    break or too many graphs raise an error (`fullgraph`) instead of a fall-back to eager mode.
    """
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = _MAX_GRAPHS
    # DDP's splitting of graphs at buckets supports neither FlexAttention nor checkpointing, and a block is small.
    dynamo.optimize_ddp = False
    if BACKEND == "inductor":
        import torch._inductor.config as inductor

        inductor.unroll_reductions_threshold = _LONGEST_UNROLLED + 1
    return torch.compile(function, dynamic=any_size, fullgraph=True, backend=BACKEND)


def set_activation_budget(share: float) -> None:
    """Lets code compiled from now on save that share of its activations; the partitioner recomputes the rest,
    activations with the fewest FLOPs first (torch's `activation_memory_budget`). Resets compiled code of an earlier
    engine with another budget.
    """
    if "torch._functorch.config" not in sys.modules and share == 1:
        return
    import torch._functorch.config as functorch

    config: Any = functorch
    if config.activation_memory_budget != share:
        torch.compiler.reset()
        config.activation_memory_budget = share


def activation_budget_in_effect() -> float:
    """Returns the share of activations that newly compiled code may save."""
    config: Any = sys.modules.get("torch._functorch.config")
    return 1.0 if config is None else float(config.activation_memory_budget)


def is_compiled(module: nn.Module) -> bool:
    return hasattr(module.forward, _WRAPPED)


def num_compilations() -> int:
    """Returns the number of graphs that dynamo has made in this process; each new shape and graph break adds one."""
    utils: Any = sys.modules.get("torch._dynamo.utils")  # its import takes a second; without it nothing was compiled
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])
