"""DDP's steps launched kernel by kernel, and with each micro-step replayed as a CUDA graph (`cuda_graphs`). Run

python -m benchmarks.cuda_graphs [--space gpt2] [--ranks 1] [--micro-batches 1,4,16,64] [--accum 1] [--set AXIS=VALUES]

The layouts are those of DDP that the space has for so many GPUs, changed by --set as in platform.search. Both engines
of a layout train in the same processes, in turn, on the same tokens. A row has the milliseconds of a step of both,
their ratio over pairs, and by how much the weights after five steps differ, relative to their change: kernels that add
in no fixed order differ from themselves too. An error is its layout's row, and makes the exit code 1.
"""

# pyright: reportPrivateUsage=false

import argparse
import dataclasses
import gc
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import search_spaces
from benchmarks import ranks
from benchmarks.pairs import alternate
from trainers import data
from trainers.engines.create import create_engine
from trainers.marks.step import Unmarked
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

WARM_UP = 4
"""Steps before the first one that is timed: the second one captures."""
COMPARED = 5
"""Steps after which the weights of both are compared."""


def main() -> None:
    """Prints a row for each layout and micro-batch; ends with exit code 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", default="gpt2")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--micro-batches", default="1,4,16,64")
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="AXIS=VALUE")
    parser.add_argument("--pairs", type=int, default=6)
    options = parser.parse_args()
    try:
        ranks.check(options.ranks)
        space = search_spaces.load(options.space).with_changes(["engine=ddp", "zero_stage=0", *options.set])
    except (KeyError, ValueError) as error:
        parser.error(str(error.args[0]))
    if not torch.cuda.is_available():
        parser.error("CUDA graphs need a CUDA device, and there is none here")
    candidates, _ = space.candidates(options.ranks)
    layouts = {dataclasses.replace(candidate.layout, cuda_graphs="off"): candidate.recipe for candidate in candidates}
    failures = Path(f"{Path.cwd().name}-cuda-graphs.failed")
    failures.unlink(missing_ok=True)
    ranks.run(_compare_all, options.ranks, layouts, options, str(failures))
    if failures.exists():
        failures.unlink()
        sys.exit(1)


def _compare_all(device: torch.device, layouts: dict[Layout, Recipe], options: argparse.Namespace, path: str) -> None:
    is_first = dist.get_rank() == 0
    if is_first:
        print(
            f"{dist.get_world_size()} x {torch.cuda.get_device_name()}, torch {torch.__version__},"
            f" {options.accum} micro-steps a step"
        )
    for layout, recipe in layouts.items():
        for micro_batch in map(int, options.micro_batches.split(",")):
            try:
                row = _compare(layout, recipe, micro_batch, options, device)
            except Exception as error:
                row = f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
                Path(path).touch()
            if is_first:
                print(f"{layout.label}, micro-batch {micro_batch}: {row}", flush=True)
            gc.collect()
            torch.cuda.empty_cache()


class _Steps:
    """An engine with tokens of its own rank, always the same ones."""

    def __init__(self, layout: Layout, recipe: Recipe, tokens: list[torch.Tensor], device: torch.device) -> None:
        self._engine: Any = create_engine(recipe, layout, device)
        self._tokens = tokens

    def run(self, steps: int) -> float:
        """Returns the seconds of a step, over so many."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(steps):
            self._engine.step(self._tokens, Unmarked())
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / steps

    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self._engine.module.parameters()])

    def close(self) -> None:
        self._engine.close()


def _compare(
    layout: Layout, recipe: Recipe, micro_batch: int, options: argparse.Namespace, device: torch.device
) -> str:
    source, first = data.source(recipe), dist.get_rank() * options.accum * micro_batch
    numbers = [range(first + k * micro_batch, first + (k + 1) * micro_batch) for k in range(options.accum)]
    tokens = [torch.from_numpy(source.sequences(0, number)).to(device) for number in numbers]
    plain = _Steps(layout, recipe, tokens, device)
    plain.run(WARM_UP)
    before = plain.weights()
    plain.run(COMPARED)
    after = plain.weights()
    # The second engine's work is on a stream of its own from its creation on, which has then waited for all this.
    graphed = _Steps(dataclasses.replace(layout, cuda_graphs="on"), recipe, tokens, device)
    graphed.run(WARM_UP + COMPARED)
    difference = float((graphed.weights() - after).norm() / (after - before).norm())
    longest_s = torch.tensor(plain.run(3), device=device)
    dist.all_reduce(longest_s, dist.ReduceOp.MAX)
    steps = max(3, round(0.7 / float(longest_s)))
    ratio = alternate(lambda: plain.run(steps), lambda: graphed.run(steps), options.pairs)
    graphed.close()
    plain.close()
    return f"{ratio}; weights differ by {difference:.1e}"


if __name__ == "__main__":
    main()
