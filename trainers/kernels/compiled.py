"""Compiled code with static shapes: each micro-batch has its own graph, and dynamo may not give up silently.

Compiled code is reused: inductor keeps it on disk in a folder of the user's (`torchinductor_USER` under the system's
temporary one, unless TORCHINDUCTOR_CACHE_DIR says otherwise), so a node compiles a block once for all trials.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

BACKEND = "inductor"
"""Backend of torch.compile. The contract test holds engines, not code generation: on several ranks it only traces."""
_MAX_GRAPHS = 64
"""Graphs of one function: micro-batches of a ladder, with and without gradients. Dynamo's own limit is 8."""
_WRAPPED = "_torchdynamo_orig_callable"


def compile_forward(module: nn.Module) -> None:
    """Compiles a module's `forward` in place: what stands around it, such as the hooks of FSDP2, stays outside.

    Blocks share their code, and what dynamo made for the first one runs all of them, as it does not look at which
    module it has.
    """
    module.forward = static(module.forward)


def static(function: Callable[..., Any], *, any_size: bool = False) -> Any:
    """Returns `function` compiled, a graph for each shape, or one for shapes of `any_size`.

    `fullgraph`: a graph break or one graph too many raises; without it dynamo would go on in eager mode.
    """
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = _MAX_GRAPHS
    # DDP's own splitting of graphs at its buckets knows no FlexAttention and no checkpoint, and a block is small.
    dynamo.optimize_ddp = False
    return torch.compile(function, dynamic=any_size, fullgraph=True, backend=BACKEND)


def set_activation_budget(share: float) -> None:
    """Lets code compiled from now on save that share of its activations; the partitioner recomputes the rest.

    It counts FLOPs and takes the cheapest first (torch's `activation_memory_budget`). Code of an earlier engine in this
    process that was cut otherwise is forgotten.
    """
    if "torch._functorch.config" not in sys.modules and share == 1:
        return
    import torch._functorch.config as functorch

    config: Any = functorch
    if config.activation_memory_budget != share:
        torch.compiler.reset()
        config.activation_memory_budget = share


def activation_budget_in_effect() -> float:
    """Returns the share that code compiled now may save."""
    config: Any = sys.modules.get("torch._functorch.config")
    return 1.0 if config is None else float(config.activation_memory_budget)


def is_compiled(module: nn.Module) -> bool:
    """Returns whether `compile_forward` has compiled the module."""
    return hasattr(module.forward, _WRAPPED)


def num_compilations() -> int:
    """Returns the graphs that dynamo has made in this process: one more with each new shape, and each break in one."""
    utils: Any = sys.modules.get("torch._dynamo.utils")  # importing it takes a second; without it there was nothing
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])
