"""Host milliseconds of FSDP2's hooks, of a checkpoint and of the optimizer's step: `UNIT_HOST_S`, `COLLECTIVE_HOST_S`,
`CHECKPOINT_HOST_S` and `SHARD_STEP_S` of the cost model's `host`. Run from the checkout:

    python -m benchmarks.fsdp_hooks [--ranks 2]

A process and, if there are any, a device a rank; one rank has nothing to gather or reduce, and torch leaves it out.
Blocks of as many parameters as GPT-2's, so small that a device never holds the host up; what a block costs is the slope
from 4 blocks to 12, the least of 30 passes. Passes under FSDP2 are in bf16, those without it in fp32, whose gradients
alone CUDA's scaler takes. The optimizer's step is timed over FSDP2's own tensors, DTensors, and as the project's engine
does it, on plain shards, of a GPT-2 of as many blocks. On a CPU it is processor time of rank 0's main thread: what
CUDA's streams, events and NCCL add is measured on GPUs alone.

Its figures: docs/lab/cost-model.csv#cost-fsdp2-hooks.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from benchmarks import ranks
from trainers.engines.create import create_engine
from trainers.marks.step import StepPhase
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

PARAMETERS = 12
WIDTH = 64
BLOCKS = (4, 12)
PASSES = 30
WARM_UP = 5


class _Block(nn.Module):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        ones = (nn.Parameter(torch.ones(WIDTH, device=device)) for _ in range(PARAMETERS))
        self.factors = nn.ParameterList(ones)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for factor in self.factors:
            values = values * factor
        return values


def _model(num_blocks: int, device: torch.device, mesh: DeviceMesh | None, checkpointed: bool) -> nn.Module:
    blocks = (_Block(device) for _ in range(num_blocks))
    model = nn.Sequential(
        *(checkpoint_wrapper(block, preserve_rng_state=False) if checkpointed else block for block in blocks)
    )
    if mesh is None:
        return model
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def _now_s(device: torch.device) -> float:
    if device.type == "cpu":
        return time.thread_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def pass_s(model: nn.Module, device: torch.device) -> tuple[float, float, float]:
    """Returns the least seconds of a forward pass, of a backward pass and of the optimizer's step in fp16."""
    values = torch.ones(1, WIDTH, device=device, requires_grad=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler(device.type)
    times: list[tuple[float, float, float]] = []
    for _ in range(WARM_UP + PASSES):
        begin = _now_s(device)
        loss = model(values).float().mean()
        middle = _now_s(device)
        scaler.scale(loss).backward()
        end = _now_s(device)
        if all(parameter.grad is not None for parameter in model.parameters()):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        times.append((middle - begin, end - middle, _now_s(device) - end))
    forward, backward, step = zip(*times[WARM_UP:], strict=True)
    return min(forward), min(backward), min(step)


def block_ms(
    device: torch.device, mesh: DeviceMesh | None, *, sync: bool = True, checkpointed: bool = False
) -> list[float]:
    """Returns the milliseconds of one more block: forward, backward, the optimizer's step."""
    few, many = (_model(num_blocks, device, mesh, checkpointed) for num_blocks in BLOCKS)
    for model in (few, many):
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(sync)
    pairs = zip(pass_s(few, device), pass_s(many, device), strict=True)
    return [1e3 * (large - small) / (BLOCKS[1] - BLOCKS[0]) for small, large in pairs]


class _OptimizerStart:
    """Marks that wait for the device and read the clock where the optimizer step begins."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.at_s = 0.0

    def begin(self, phase: StepPhase) -> None:
        if phase is StepPhase.OPTIMIZER_STEP:
            self.at_s = _now_s(self._device)


def engine_step_s(num_blocks: int, num_ranks: int, device: torch.device) -> float:
    """Returns the least seconds of the engine's own optimizer step in fp16."""
    spec = ModelSpec(
        name="blocks",
        architecture="gpt2",
        num_layers=num_blocks,
        hidden_size=WIDTH,
        num_heads=1,
        vocab_size=WIDTH,
        max_positions=1,
    )
    recipe = Recipe(model=spec, seq_len=1, global_batch=num_ranks, compute_precision="fp16")
    engine = create_engine(recipe, Layout(engine="fsdp", zero_stage=3, dp_shard=num_ranks), device)
    times: list[float] = []
    for _ in range(WARM_UP + PASSES):
        marks = _OptimizerStart(device)
        engine.step([torch.zeros(1, 2, dtype=torch.int64, device=device)], marks)
        times.append(_now_s(device) - marks.at_s)
    engine.close()
    return min(times[WARM_UP:])


def measure(device: torch.device) -> None:
    """Measures on one rank; rank 0 prints milliseconds."""
    num_ranks = dist.get_world_size()
    mesh = init_device_mesh(device.type, (num_ranks,))
    plain = block_ms(device, None)
    checkpointed = block_ms(device, None, checkpointed=True)
    every_step = block_ms(device, mesh)
    last = block_ms(device, mesh, sync=False)
    few, many = (engine_step_s(num_blocks, num_ranks, device) for num_blocks in BLOCKS)
    if dist.get_rank() == 0:
        print(f"{num_ranks} x {device.type}, torch {torch.__version__}, ms of a block of {PARAMETERS} parameters")
        print(f"without hooks: {plain[0]:.2f} forward, {plain[1]:.2f} backward")
        for name, result, base in (
            ("a checkpoint, its second forward pass included", checkpointed, plain),
            ("FSDP2's hooks, grad_sync every", every_step, plain),
            ("FSDP2's hooks, grad_sync last", last, plain),
        ):
            print(f"{name}: {result[0] - base[0]:.2f} forward, {result[1] - base[1]:.2f} backward")
        print(
            f"a parameter in the optimizer's step, fp16: {every_step[2] / PARAMETERS:.3f} over DTensors,"
            f" {1e3 * (many - few) / (BLOCKS[1] - BLOCKS[0]) / PARAMETERS:.3f} by the engine,"
            f" {plain[2] / PARAMETERS:.3f} without FSDP2"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1, help="processes, a device each where there are devices")
    num_ranks = parser.parse_args().ranks
    try:
        ranks.check(num_ranks)
    except ValueError as error:
        parser.error(str(error))
    ranks.run(measure, num_ranks)


if __name__ == "__main__":
    main()
