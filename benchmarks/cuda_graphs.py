"""Whole optimizer steps launched kernel by kernel, and the same steps replayed as one CUDA graph, on one GPU. Run

python -m benchmarks.cuda_graphs [--space gpt2] [--micro-batches 1,4,16,64] [--set attention=sdpa ...] [--pairs 8]

The layout is the space's first one of DDP, changed by --set as in platform.search; a step has one micro-batch. The
graph holds forward and backward pass, clipping and AdamW, and always reads the same tokens: the most that CUDA graphs
can give. A row has milliseconds of both, their ratio over pairs, and how far the weights after five steps differ.
"""

# pyright: reportPrivateUsage=false

import argparse
import os
from typing import Any, cast

import torch
import torch.distributed as dist

import search_spaces
from benchmarks.pairs import alternate
from search_spaces.candidate import Candidate
from trainers import data, engines
from trainers.engines.step import Unmarked

WARM_UP = 11
"""Steps before a capture: DDP orders its buckets within the first ten and asks for eleven."""
COMPARED = 5
"""Steps after which the weights of both are compared."""


def main() -> None:
    """Prints a row for each micro-batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", default="gpt2")
    parser.add_argument("--micro-batches", default="1,4,16,64")
    parser.add_argument("--set", action="append", default=[], metavar="AXIS=VALUE")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--window-s", type=float, default=1.0)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("CUDA graphs need a CUDA device, and there is none here")
    # DDP's manual wants no error handling of NCCL's where a whole step is captured.
    os.environ.update(LOCAL_RANK="0", RANK="0", WORLD_SIZE="1", TORCH_NCCL_ASYNC_ERROR_HANDLING="0")
    dist.init_process_group("nccl", store=cast(Any, dist).HashStore(), rank=0, world_size=1)
    changes = ["engine=ddp", "zero_stage=0", *options.set]
    candidate = search_spaces.load(options.space).with_changes(changes).candidates(1)[0][0]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {candidate.layout.label}", flush=True)
    for micro_batch in map(int, options.micro_batches.split(",")):
        print(f"micro-batch {micro_batch:3}: {_compare(candidate, micro_batch, options)}", flush=True)
    dist.destroy_process_group()


class _Steps:
    """An engine, a stream, and steps that always take the same tokens."""

    def __init__(self, candidate: Candidate, micro_batch: int) -> None:
        device = torch.device("cuda", 0)
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):  # DDP notes the stream that it is made on
            self.engine = engines.create(candidate.recipe, candidate.layout, device)
            tokens = data.source(candidate.recipe).sequences(0, range(micro_batch))
            self.tokens = [torch.from_numpy(tokens).to(device)]
        optimizer: Any = cast(Any, self.engine)._optimizer
        for group in optimizer.param_groups:
            group["capturable"] = True
        self.graph: torch.cuda.CUDAGraph | None = None

    def captured(self) -> None:
        """Captures one step; later ones replay it."""
        self.run(WARM_UP)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog, a thread of its own, may go on asking for events.
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            self.engine.step(self.tokens, Unmarked())
        self.graph = graph
        self.run(1)  # a capture runs nothing

    def run(self, steps: int) -> None:
        with torch.cuda.stream(self.stream):
            for _ in range(steps):
                if self.graph is None:
                    self.engine.step(self.tokens, Unmarked())
                else:
                    self.graph.replay()

    def step_s(self, steps: int) -> float:
        """Returns the seconds of a step, over so many."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(self.stream)
        self.run(steps)
        end.record(self.stream)
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / steps

    def weights(self) -> torch.Tensor:
        torch.cuda.synchronize()
        return torch.cat([each.detach().flatten() for each in cast(Any, self.engine)._module.parameters()])


def _compare(candidate: Candidate, micro_batch: int, options: argparse.Namespace) -> str:
    plain, graphed = _Steps(candidate, micro_batch), _Steps(candidate, micro_batch)
    plain.run(WARM_UP + 1)
    graphed.captured()
    before = plain.weights()
    plain.run(COMPARED)
    graphed.run(COMPARED)
    after = plain.weights()
    difference = float((graphed.weights() - after).norm() / (after - before).norm())
    steps = max(3, round(options.window_s / plain.step_s(3)))
    ratio = alternate(lambda: plain.step_s(steps), lambda: graphed.step_s(steps), options.pairs)
    plain.engine.close()
    graphed.engine.close()
    return f"{ratio}; weights differ by {difference:.1e} of their change"


if __name__ == "__main__":
    main()
