"""Host seconds of one FSDP2 unit's hooks, by pass: `host.UNIT_HOST_S` of the cost model. Run from the checkout:

    python -m benchmarks.fsdp_hooks

One process, one device if there is one. Blocks of as many parameters as GPT-2's, so small that a device never holds
the host up; what a block costs is the slope from 4 blocks to 12, the least of 30 passes. On a CPU it is processor time:
what CUDA's streams, events and collectives add is measured on a GPU alone.
"""

import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

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


def _model(num_blocks: int, device: torch.device, mesh: DeviceMesh | None) -> nn.Module:
    model = nn.Sequential(*(_Block(device) for _ in range(num_blocks)))
    if mesh is None:
        return model.to(torch.bfloat16)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def _now_s(device: torch.device) -> float:
    if device.type == "cpu":
        return time.thread_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def pass_s(model: nn.Module, device: torch.device) -> tuple[float, float]:
    """Least seconds of a forward and of a backward pass."""
    values = torch.ones(1, WIDTH, device=device, dtype=torch.bfloat16, requires_grad=True)
    found: list[tuple[float, float]] = []
    for _ in range(WARM_UP + PASSES):
        begin = _now_s(device)
        loss = model(values).float().mean()
        middle = _now_s(device)
        loss.backward()
        found.append((middle - begin, _now_s(device) - middle))
    forward, backward = zip(*found[WARM_UP:], strict=True)
    return min(forward), min(backward)


def main() -> None:
    """Prints milliseconds of a block without hooks and of its hooks, with and without an exchange of gradients."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=0, world_size=1)
    mesh = init_device_mesh(device.type, (1,))
    plain_s = [0.0, 0.0]
    for name, on, sync in (("without hooks", None, True), ("every", mesh, True), ("last", mesh, False)):
        few, many = (_model(num_blocks, device, on) for num_blocks in BLOCKS)
        for model in (few, many):
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(sync)
        found = [
            (large - small) / (BLOCKS[1] - BLOCKS[0])
            for small, large in zip(pass_s(few, device), pass_s(many, device), strict=True)
        ]
        if on is None:
            plain_s = found
            print(f"a block of {PARAMETERS} parameters on {device.type}, torch {torch.__version__}: ", end="")
        else:
            found = [each - plain for each, plain in zip(found, plain_s, strict=True)]
            print(f"its hooks, grad_sync {name}: ", end="")
        print(f"{1e3 * found[0]:.2f} ms forward, {1e3 * found[1]:.2f} ms backward")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
