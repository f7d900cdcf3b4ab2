"""Seconds that the host takes: launching kernels, hooks, a pipeline's instructions, the optimizer's step."""

import numpy as np

from platform.cost_model.columns import Array, Columns, wraps_optimizer

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
GRADIENT_HOOK_S = 0.1e-3
"""Host time of one parameter's gradient hook where DeepSpeed's own optimizer is at work, 12 a block: ZeRO-1 takes 15 ms
more a step than ZeRO-0 under autocast for GPT-2 small on an H200 (this project)."""
GATHER_HOST_S = 0.27e-3
"""Host time of one parameter-holding module's fetch or release under ZeRO-3's hooks: 42 ms more a step than ZeRO-2 for
GPT-2 small on an H200 (this project), over 74 modules and 3 passes; hooks on gradients took 14 of ZeRO-2's. A loop that
waits for the device at each micro-step, as DeepSpeed's throughput timer does unless turned off, took 87 ms more."""
UNIT_HOST_S = 1.2e-3
"""Host time of one unit's hooks under FSDP2 and pass, of which the backward pass has two: gathering, copying out,
setting each parameter, freeing, copying in and reducing, all driven from Python. Two H200 hosts (this project), GPT-2
small, twelve blocks: compiled, micro-batch 16, 48 ms a micro-step with the device 59 % busy, which leaves 1.2 ms;
eager, micro-batch 8, 87 to 99 ms where DDP, which waits for its device, takes 61: 1.5 to 1.9 ms. Without any device the
same hooks take 0.6 to 0.9 ms of a 2.5 GHz core, in the backward pass 0.8 to 1.3 in all (`benchmarks.fsdp_hooks`)."""
INSTRUCTIONS_S = 3e-3
"""Host time of a micro-step in DeepSpeed's pipeline, which interprets a list of instructions and waits at each transfer
(`pipe/schedule.py`, `pipe/engine.py`). BigScience's 1.3B model on eight V100 takes 1 to 2 s more a step with 64 to 128
more micro-steps, where all else explains 0.6 to 1.4 (experiments/tr3m-1B3.md)."""
STEP_HOST_S = 5e-3
"""Host time of one optimizer step: clipping's synchronisation, learning rate, zeroing; as much again where DeepSpeed's
own optimizer wraps torch's."""


def host_layer_s(columns: Columns) -> tuple[Array, Array]:
    """Host seconds (forward, backward) to launch one block's kernels: the floor under small micro-batches."""
    launches = np.where(columns.fused > 0, FUSED_LAUNCHES, EAGER_LAUNCHES)
    forward = launches * np.where(columns.blocking > 0, BLOCKED_LAUNCH_S, LAUNCH_S)
    # ZeRO-3 hooks every module: six a block.
    hooks = np.where(columns.engine == 1, UNIT_HOST_S, 0.0)
    hooks = np.where((columns.engine == 2) & (columns.zero_stage == 3), 6 * GATHER_HOST_S, hooks)
    gradient_hooks = np.where(wraps_optimizer(columns) & (columns.zero_stage < 3), 12 * GRADIENT_HOOK_S, 0.0)
    return forward + hooks, 2 * forward + 2 * hooks + gradient_hooks
