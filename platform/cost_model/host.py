"""Seconds that the host takes: launches, hooks, checkpoints, a pipeline's instructions, the optimizer's step."""

import numpy as np

from platform.cost_model.columns import DEEPSPEED, FSDP, Array, Columns, wraps_optimizer

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
GRADIENT_HOST_S = 0.1e-3
"""Host time of one parameter's gradient where DeepSpeed's own optimizer is at work, 12 a block: of its hook where each
launch waits (BigScience's ZeRO-1), and in fp16 of the step's search for overflow. GPT-2 small in fp16 on an H200 (this
project), one micro-step a step, takes 15 to 18 ms more under ZeRO-0 to 2 than under DDP, of which ZeRO-0 has no hook;
in bf16, 32 micro-steps a step and compiled, ZeRO-1 and 2 take no longer than DDP: hooks that run ahead of the device
cost nothing that shows."""
GATHER_HOST_S = 0.27e-3
"""Host time of one parameter-holding module's fetch or release under ZeRO-3's hooks: 42 ms more a step than ZeRO-2 for
GPT-2 small on an H200 (this project), over 74 modules and 3 passes; hooks on gradients took 14 of ZeRO-2's. A loop that
waits for the device at each micro-step, as DeepSpeed's throughput timer does unless turned off, took 87 ms more."""
UNIT_HOST_S = 0.17e-3
"""Host time of one unit's hooks under FSDP2 and pass, of which the backward pass has two, where parameters stay whole
and gradients are only summed: stage 2 between a step's first and last micro-step. GPT-2 small, twelve blocks, eager and
compiled, micro-batches 2 to 8, on H200s of two hosts (this project): 26 to 37 ms a micro-step, of which launches and
calls take 23. Without any device all of a block's hooks take 0.6 ms (`benchmarks.fsdp_hooks`)."""
CAST_HOST_S = 0.35e-3
"""Host time of making one unit whole and letting it go, on one rank: each parameter cast, set and freed from Python.
The same runs under stage 3, which does so in each pass: 35 to 41 ms (one of four took 55)."""
REDUCE_HOST_S = 1.5e-3
"""Host time of one unit's reduction on one rank: twelve gradients cast, copied and handed over, streams and events.
GPT-2 XL at length 128, stage 3, eager, one micro-step a step, where all of it is done (this project): 5 to 6 ms a block
on one H200, and on four 7 ms less `COLLECTIVE_HOST_S` three times."""
COLLECTIVE_HOST_S = 0.8e-3
"""Host time of gathering or reducing one unit under FSDP2 among several ranks, beside that: copying in, the collective,
copying out, which torch leaves out on one rank (`_fsdp_param_group.py`, `world_size == 1`). GPT-2 XL at length 128,
stage 3, eager, one micro-step a step (this project): 329 to 374 ms forward and backward on four H200 at micro-batches 1
to 9, 247 on one of another host at 8, so 0.7 ms for each of three a block, and 0.9 beside this model of one; GPT-2
small in a bare loop on two H200, 87 to 99 ms, so 0.6 to 1. Without any device two ranks take 0.9 ms more of a 2.5 GHz
core than one (`benchmarks.fsdp_hooks`)."""
CHECKPOINT_HOST_S = 2.4e-3
"""Host time of an eager block's checkpoint beside the launches of its second forward pass: torch's checkpoint sees each
saved tensor in Python, as it is saved, saved again and used (`torch/utils/checkpoint.py`). The same runs with full
checkpointing: 10.3 ms a block forward and backward, for 48 and 96 blocks, where 7.2 are taken without."""
SHARD_STEP_S = 0.04e-3
"""Host time of the optimizer's step for one parameter under FSDP2, 12 a block: unscaling, norm, clipping and AdamW over
each rank's shards, which the engine holds as plain tensors. Hidden where the device is behind. Over FSDP2's own tensors
it was 0.075 ms on four H200 (35 to 53 ms for GPT-2 XL's 580 parameters, 78 to 103 for XXL's 1,156); of that the plain
ones take 0.52 on two H200 (0.014 beside 0.027 ms, `benchmarks.fsdp_hooks`). On one H200 XL's step is 24 ms so, where it
was 57, of which the device needs some 19 (derived: 75 GB at 4 TB/s)."""
INSTRUCTIONS_S = 3e-3
"""Host time of a micro-step in DeepSpeed's pipeline, which interprets a list of instructions and waits at each transfer
(`pipe/schedule.py`, `pipe/engine.py`). BigScience's 1.3B model on eight V100 takes 1 to 2 s more a step with 64 to 128
more micro-steps, where all else explains 0.6 to 1.4 (experiments/tr3m-1B3.md)."""
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
    # ZeRO-3 hooks every module: six a block.
    fetching = np.where((c.engine == DEEPSPEED) & (c.zero_stage == 3), 6 * GATHER_HOST_S, 0.0)
    fsdp = c.engine == FSDP
    unit = np.where(fsdp, UNIT_HOST_S, 0.0)
    # Stage 2 gathers for the first of a step's micro-steps; gradients may be reduced in the last alone.
    collective = np.where(c.shard > 1, COLLECTIVE_HOST_S, 0.0)
    gather = np.where(fsdp, CAST_HOST_S + collective, 0.0)
    reduce = np.where(fsdp, REDUCE_HOST_S + collective, 0.0)
    gathers = np.where(c.zero_stage == 3, 1.0, 1.0 / c.grad_accum)
    again = np.where(c.zero_stage == 3, 1.0, 0.0)
    reduces = np.where(c.sync_every > 0, 1.0, 1.0 / c.grad_accum)
    hooked = wraps_optimizer(c) & (c.zero_stage < 3) & (c.blocking > 0)
    gradient_hooks = np.where(hooked, 12 * GRADIENT_HOST_S, 0.0)
    forward = kernels + fetching + unit + gathers * gather
    backward = 2 * (kernels + fetching + unit) + again * gather + reduces * reduce + gradient_hooks
    # FSDP2's unit holds the checkpoint; compiled code has it inside.
    return forward, backward, kernels + fetching + np.where(c.fused > 0, 0.0, CHECKPOINT_HOST_S)


def host_step_s(columns: Columns) -> Array:
    """Host seconds of the optimizer's step."""
    wraps = wraps_optimizer(columns)
    searches = wraps & (columns.scales_loss > 0) & (columns.zero_stage < 3)
    searching = np.where(searches, 12 * columns.layers / columns.pp * GRADIENT_HOST_S, 0.0)
    return np.where(wraps, 2 * STEP_HOST_S, STEP_HOST_S) + searching


def host_step_layer_s(columns: Columns) -> Array:
    """Host seconds of the optimizer's step a block, as far as they follow its parameters."""
    return np.where(columns.engine == FSDP, 12 * SHARD_STEP_S, 0.0)


def together_s(host: Array, device: Array) -> Array:
    """Seconds that both need side by side: a norm of the two, `SHARPNESS` its order."""
    return (host**SHARPNESS + device**SHARPNESS) ** (1 / SHARPNESS)


def pace_share(device: Array, together: Array) -> Array:
    """Share of a relative change of the host's time that `together_s` has: its logarithmic derivative."""
    return 1 - (device / together) ** SHARPNESS
