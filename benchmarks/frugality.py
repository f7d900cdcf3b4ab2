"""What each rank holds while an engine is made, and where the host waits for the device within a step.

    torchrun --nproc-per-node 4 -m benchmarks.frugality [SPACE]

BLOOM 7b1 unless another space is named, its reference recipe at micro-batch 1, sharded by FSDP2 and by ZeRO 1 to 3,
with and without offload. Printed from rank 0: the largest rank's peak in GiB until the engine is ready, beside the
whole model's fp32 weights; then each place of Python at which CUDA synchronised in a warmed-up step
(`torch.cuda.set_sync_debug_mode`), with how often. On CPUs the space's miniature runs, and no waits are known.
"""

import argparse
import collections
import dataclasses
import gc
import os
import traceback
import warnings
from typing import Any

import torch
import torch.distributed as dist

import search_spaces
from trainers import engines
from trainers.data import source
from trainers.layout import Layout, Offload
from trainers.measuring.device import CpuMeter, CudaMeter, Meter
from trainers.recipe import Recipe


def main() -> None:
    """Every layout in turn, in one process group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("space", nargs="?", default="bloom7b", metavar="SPACE")
    try:
        space = search_spaces.load(parser.parse_args().space)
    except ValueError as error:
        parser.error(str(error))
    if "LOCAL_RANK" not in os.environ:
        parser.error("torchrun starts it, a process a rank: torchrun --nproc-per-node 4 -m benchmarks.frugality")
    on_cuda = torch.cuda.is_available()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_cuda else "gloo")
    if not on_cuda and space.miniature is not None:
        space = space.miniature
    whole_gib = space.recipe.model.num_parameters * 4 / 2**30
    for layout in _layouts(world, offloads=on_cuda):
        engines.load(layout.engine)
        peak, places = _measure(space.recipe, layout, device)
        peaks: list[Any] = [None] * world
        dist.all_gather_object(peaks, peak)
        if rank == 0:
            print(f"{layout.label}: {max(peaks):.2f} GiB at the start, the model has {whole_gib:.2f}")
            for place, count in places.most_common():
                print(f"    {count} x {place}")
    dist.destroy_process_group()


def _layouts(world: int, *, offloads: bool) -> list[Layout]:
    common: dict[str, Any] = {"dp_shard": world, "checkpointing": "full", "grad_sync": "every"}
    made = [Layout(engine="fsdp", zero_stage=3, **common)]
    made += [
        Layout(engine="deepspeed", zero_stage=stage, **{**common, "grad_sync": "every" if stage > 1 else "last"})
        for stage in (1, 2, 3)
    ]
    if offloads:
        made += [dataclasses.replace(each, offload=away) for each, away in zip(made, _AWAY, strict=True)]
    return made


_AWAY: tuple[Offload, ...] = ("all", "optimizer", "optimizer", "all")


def _measure(recipe: Recipe, layout: Layout, device: torch.device) -> tuple[float, collections.Counter[str]]:
    """GiB that this rank held at most until the engine was ready, and the places that waited in its second step."""
    gc.collect()  # the engine before
    meter: Meter = CudaMeter() if device.type == "cuda" else CpuMeter(1024.0)
    meter.start(None)
    meter.reset_peak()
    engine = engines.create(recipe, layout, device)
    peak = meter.peak_allocated_gib()
    engine.set_grad_accum(2)
    tokens = torch.from_numpy(source(recipe).sequences(0, range(1))).to(device)
    places: collections.Counter[str] = collections.Counter()

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "synchronizing" in str(message):
            stack = traceback.extract_stack()[:-1]
            ours = next((each for each in reversed(stack) if "/trainers/" in each.filename), stack[0])
            places[f"{ours.filename}:{ours.lineno} through {stack[-1].filename}:{stack[-1].lineno}"] += 1

    def step() -> None:
        engine.micro_step(tokens, last=False)
        engine.micro_step(tokens, last=True)
        engine.optimizer_step()

    step()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        step()
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    engine.close()
    return peak, places


if __name__ == "__main__":
    main()
