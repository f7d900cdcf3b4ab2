"""Prints the peak memory in GiB of this project's engines on single ranks of a mesh, by torch's fake-tensor tracker.

A script: it makes a fake process group for the whole process, one rank after another.

    PYTHONPATH=. python tests/cost_model/track_ranks.py '[{"recipe": {...}, "layout": {...}, "micro_batch": 1}]'
"""

# The tracker is told of an engine's module and optimizer.
# pyright: reportPrivateUsage=false

import json
import sys
from typing import Any, cast
from unittest import mock

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.pipelining import schedules
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainers.distributed.groups import Mesh
from trainers.engines.create import create_engine
from trainers.marks.step import Unmarked
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import from_json
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


class _Total(MemTracker):
    """Tracks all tensors together: a pipeline stage's modules run many times before a backward pass."""

    def _pre_fw_hook(self, *args: Any) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    def _post_fw_hook(self, *args: Any) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    def _pre_bw_hook(self, *args: Any) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    def _post_bw_hook(self, *args: Any) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]


def _real_shards(shards: Any) -> Any:
    """Makes a mesh of real ranks, because torch reads them."""

    def make_shards(self: Mesh) -> Any:
        with unset_fake_temporarily():
            return shards(self)

    return make_shards


def _static_shapes(_schedule: Any, stages: list[Any], *_: Any) -> None:
    """Replaces torch 2.13's test of a pipeline's links, whose answer torch reads."""
    for stage in stages:
        stage._inference_mode = cast(Any, schedules).InferenceMode.STATIC


def _exchanged(_state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Replaces DDP's exchange of a bucket, for which a fake process group returns no result."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class _UnorderedBuckets:
    """DDP's reducer without the reordering of buckets after the first exchange, which reads tensors."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def peak_gib(recipe: Recipe, layout: Layout, batch: BatchPoint) -> float:
    """Returns the peak in GiB of one optimizer step on this rank of the default process group."""
    no_trial = mock.patch.object(schedules._PipelineSchedule, "_warmup_p2p", _static_shapes, create=True)
    real = mock.patch.object(Mesh, "shards", _real_shards(Mesh.shards))
    with no_trial, real, FakeTensorMode(), torch.device("cpu"):
        engine: Any = create_engine(recipe, layout, torch.device("cpu"))
        for module in engine._modules if layout.engine == "ddp" else ():
            module.register_comm_hook(None, _exchanged)
            module.reducer = _UnorderedBuckets(module.reducer)
        size = (batch.micro_batch, recipe.seq_len + 1)
        tokens = [torch.zeros(size, dtype=torch.int64) for _ in range(batch.grad_accum)]
        engine.step(tokens, Unmarked())  # optimizer states are made, and what sharding propagation allocates
        tracker = _Total()
        tracker.track_external(engine.module, engine._optimizer, *tokens)
        with tracker:
            engine.step(tokens, Unmarked())
        snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
        return float(snapshot["Total"]) / 2**30


def main() -> None:
    """Prints one JSON list with the peaks of each case for one rank per stage; other ranks of a stage hold as much."""
    peaks_gib: list[list[float]] = []
    for case in json.loads(sys.argv[1]):
        recipe, layout = from_json(Recipe, case["recipe"]), from_json(Layout, case["layout"])
        batch = BatchPoint.of(recipe, layout, case["micro_batch"])
        peaks_gib.append([])
        for rank in range(0, layout.world_size, layout.world_size // layout.pp):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
            peaks_gib[-1].append(peak_gib(recipe, layout, batch))
            dist.destroy_process_group()
    print(json.dumps(peaks_gib))


if __name__ == "__main__":
    main()
