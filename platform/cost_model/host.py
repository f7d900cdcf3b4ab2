"""Seconds that the host takes: launches, hooks, checkpoints, a pipeline's instructions, the optimizer's step."""

import numpy as np

from platform.cost_model.columns import Array, Columns
from platform.cost_model.engines import costs_of

LAUNCH_S = 7e-6
"""Host time of one kernel launch through PyTorch's dispatcher (arXiv 2104.04473 leaves it out; PyTorch's own
benchmarks give 5 to 10 us)."""
BLOCKED_LAUNCH_S = 20e-6
"""The same where the host waits for the kernel first (CUDA_LAUNCH_BLOCKING=1): launch, wake-up and dispatch, none of it
hidden. BigScience's 200B model on 80 and 160 A100 lost 6 and 0 % by it, 43 and 0 us a launch
(train/tr11-176B-ml/chronicles-prequel.md, "dealing with JZ hanging")."""
FUSED_LAUNCHES = 20.0
EAGER_LAUNCHES = 90.0
"""Launches of one block's forward pass; the backward pass has twice as many."""
COMPILED_CALL_S = 0.5e-3
"""Host time of one call of compiled code beside its launches: guards, AOTAutograd's wrappers and inductor's, all in
Python; the backward pass counts two. GPT-2 small, twelve blocks, micro-batch 8, on H200 hosts (this project): 24
to 34 ms a micro-step under DDP, whose device has work for 19; and FSDP2's micro-steps are no shorter compiled, 48 to 61
ms, than not, 45 to 60, though a compiled block launches a quarter as many kernels."""
CHECKPOINT_HOST_S = 2.4e-3
"""Host time of an eager block's checkpoint beside the launches of its second forward pass: torch's checkpoint sees each
saved tensor in Python, as it is saved, saved again and used (`torch/utils/checkpoint.py`). The same runs with full
checkpointing: 10.3 ms a block forward and backward, for 48 and 96 blocks, where 7.2 are taken without."""
STEP_HOST_S = 5e-3
"""Host time of one optimizer step: clipping's synchronisation, learning rate, zeroing; as much again where DeepSpeed's
own optimizer wraps torch's."""
SHARPNESS = 4.0
"""How sharply the longer of host's and device's time sets the pace: infinite where the host could run ahead without
end. It runs ahead as far as its work is spread evenly, and neither's is over forward pass, head, backward pass and the
bursts of hooks: where both need as long, a step takes 2^(1/4) of it. GPT-2 under FSDP2, compiled, on two H200 hosts
(this project) that need some 50 ms a micro-step: 51 and 61 ms where the device has work for 33, 69 and 74 where it has
for 62, 121 and 122 where it has for 122."""


def host_layer_s(columns: Columns) -> tuple[Array, Array, Array]:
    """Host seconds (forward, backward, forward again for a checkpoint) of one block's kernels and hooks: the floor
    under small micro-batches."""
    c = columns
    launches = np.where(c.fused > 0, FUSED_LAUNCHES, EAGER_LAUNCHES)
    kernels = launches * np.where(c.blocking > 0, BLOCKED_LAUNCH_S, LAUNCH_S) + c.compiled_calls * COMPILED_CALL_S
    hooks = costs_of(c).hooks(c)
    # Compiled code has its checkpoint inside.
    again = kernels + hooks.again + np.where(c.fused > 0, 0.0, CHECKPOINT_HOST_S)
    return kernels + hooks.forward, 2 * kernels + hooks.backward, again


def host_step_s(columns: Columns) -> Array:
    """Host seconds of the optimizer's step."""
    engine = costs_of(columns)
    return np.where(engine.wraps_optimizer(columns), 2 * STEP_HOST_S, STEP_HOST_S) + engine.step_host_s(columns)


def together_s(host: Array, device: Array) -> Array:
    """Seconds that both need side by side: a norm of the two, `SHARPNESS` its order."""
    return (host**SHARPNESS + device**SHARPNESS) ** (1 / SHARPNESS)


def pace_share(device: Array, together: Array) -> Array:
    """Share of a relative change of the host's time that `together_s` has: its logarithmic derivative."""
    return 1 - (device / together) ** SHARPNESS
