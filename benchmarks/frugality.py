"""Measures what each rank holds while an engine is made, and where the host waits for the device within a step.

    python -m benchmarks.frugality [SPACE] [--ranks 4]

BLOOM 7b1 unless another space is named, its reference recipe at micro-batch 1 with sdpa (for its eager attention
transformers copies a number to the device in each pass, and waits), sharded by FSDP2 and by ZeRO 1 to 3, with and
without offload, in processes of their own each. Printed from rank 0: the largest rank's peak in GiB until the engine is
ready, beside the whole model's fp32 weights; then each place of Python at which CUDA synchronised in a warmed-up step
(`torch.cuda.set_sync_debug_mode`), with how often. On CPUs the space's miniature runs, and no waits are known.
"""

import argparse
import collections
import dataclasses
import traceback
import warnings
from typing import Any

import torch
import torch.distributed as dist

import search_spaces
from benchmarks import ranks
from trainers.data import source
from trainers.engines.create import create_engine, engine_class
from trainers.marks.step import Unmarked
from trainers.measuring.device import CpuMeter, CudaMeter, Meter
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import Offload
from trainers.spec.recipe import Recipe


def main() -> None:
    """Measures every layout in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("space", nargs="?", default="bloom7b", metavar="SPACE")
    parser.add_argument(
        "--ranks", type=int, default=torch.cuda.device_count() or 2, help="processes (default: a device each, or 2)"
    )
    options = parser.parse_args()
    try:
        space = search_spaces.load(options.space)
        ranks.check(options.ranks)
    except ValueError as error:
        parser.error(str(error))
    on_cuda = torch.cuda.is_available()
    if not on_cuda and space.miniature is not None:
        space = space.miniature
    for layout in _layouts(options.ranks, offloads=on_cuda):
        ranks.run(_print_peak, options.ranks, space.recipe, layout)


def _print_peak(device: torch.device, recipe: Recipe, layout: Layout) -> None:
    engine_class(layout.engine)
    peak, places = _measure(recipe, layout, device)
    peaks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(peaks, peak)
    if dist.get_rank() == 0:
        whole_gib = recipe.model.num_parameters * 4 / 2**30
        print(f"{layout.label}: {max(peaks):.2f} GiB at the start, the model has {whole_gib:.2f}", flush=True)
        for place, count in places.most_common():
            print(f"    {count} x {place}", flush=True)


def _layouts(world: int, *, offloads: bool) -> list[Layout]:
    layouts = [
        Layout(engine="fsdp", zero_stage=3, dp_shard=world, checkpointing="full", grad_sync="every", attention="sdpa")
    ]
    layouts += [
        dataclasses.replace(
            layouts[0], engine="deepspeed", zero_stage=stage, grad_sync="every" if stage > 1 else "last"
        )
        for stage in (1, 2, 3)
    ]
    if offloads:
        layouts += [dataclasses.replace(layout, offload=away) for layout, away in zip(layouts, _AWAY, strict=True)]
    return layouts


_AWAY: tuple[Offload, ...] = ("all", "optimizer", "optimizer", "all")


def _measure(recipe: Recipe, layout: Layout, device: torch.device) -> tuple[float, collections.Counter[str]]:
    """Returns the most GiB that this rank held until the engine was ready, and the places that waited in its second
    step.
    """
    meter: Meter = CudaMeter() if device.type == "cuda" else CpuMeter(1024.0)
    meter.start(None)
    meter.reset_peak()
    engine = create_engine(recipe, layout, device)
    peak = meter.peaks()[0].allocated_gib
    tokens = torch.from_numpy(source(recipe).sequences(0, range(1))).to(device)
    places: collections.Counter[str] = collections.Counter()

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "called a synchronizing" in str(message):  # switching it on warns too
            stack = [frame for frame in traceback.extract_stack()[:-1] if frame.filename != warnings.__file__]
            ours = next((frame for frame in reversed(stack) if "/trainers/" in frame.filename), stack[0])
            places[f"{ours.filename}:{ours.lineno} through {stack[-1].filename}:{stack[-1].lineno}"] += 1

    def step() -> None:
        engine.step([tokens] * 2, Unmarked())

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
