"""Groups of gloo processes, each of which runs many cases one after another.

The processes of all groups are forks of one server that has imported the engines, because importing them in every
process would take seconds of processor time per rank and group.
"""

import contextlib
import gc
import hashlib
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Generator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes
from transformers.models.bloom import modeling_bloom as bloom_library

from tests.contract import whole_tensors
from tests.contract.cases import Case
from tests.contract.reference import Run, learning_rate_at, probe
from tests.contract.relaunched import Relaunched
from trainers import data
from trainers.engines import ddp as ddp
from trainers.engines import ddp_compression
from trainers.engines.create import create_engine
from trainers.kernels import compiled, head
from trainers.marks.step import StepPhase
from trainers.measuring.timed_steps import losses_of
from trainers.spec import engines

_IMPORTED = (
    "tests.contract.group",
    *(f"trainers.spec.engines.{name}.runtime" for name in ("ddp", "fsdp", "deepspeed")),
)
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
"""Environment variables of the ranks: one thread each, because more would compete for the cores, and no GPU, because
the contract always runs on gloo.
"""
MAX_THREADS = 120
"""Largest number of threads of a rank at its end. gloo starts two per process group, and groups are never destroyed,
because DTensor's caches hold them. A rank with more threads has cases that do not share groups.
"""


def run_cases(cases: list[Case], world_size: int) -> list[dict[str, Any]]:
    """Returns for each case `run`, `mismatches` and `digests` (of start weights, one per rank), or `error`."""
    try:
        return run_group(_run_all, cases, world_size)
    except TimeoutError as error:
        return [{"error": str(error)}] * len(cases)


def run_group(work: Callable[[Any], Any], argument: Any, world_size: int, *, deadline_s: float = 1200) -> Any:
    """Runs `work(argument)` on every rank of a new gloo group and returns the result of rank 0.

    Raises:
        TimeoutError: the ranks did not finish in time, and were killed.
    """
    ends = time.monotonic() + deadline_s
    with tempfile.TemporaryDirectory() as folder:
        before = dict(os.environ)
        os.environ |= _ENVIRONMENT  # the server, which the first group starts, keeps it
        multiprocessing.get_context("forkserver").set_forkserver_preload([*_IMPORTED])
        try:
            group = start_processes(
                _work,
                args=(work, argument, world_size, folder),
                nprocs=world_size,
                join=False,
                daemon=True,
                start_method="forkserver",
            )
        finally:
            os.environ.clear()
            os.environ |= before
        assert group is not None
        while not group.join(timeout=1):
            if time.monotonic() > ends:
                for process in group.processes:
                    cast(Any, process).kill()
                raise TimeoutError(f"{world_size} ranks were not done after {deadline_s} s")
        return torch.load(Path(folder) / "result", weights_only=False)


def _work(rank: int, work: Callable[[Any], Any], argument: Any, world_size: int, folder: str) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # what the server imported stays: looking through it after each case takes as long as the case
    if world_size > 1:
        compiled.BACKEND = "aot_eager"  # a compiler takes a minute of two cores for what one rank shows too
    head.CHUNK_LOGITS = 97 * 10  # several chunks of the tiny vocabulary a micro-batch
    ddp_compression.PIECE_VALUES = 1000  # several pieces a bucket
    cast(Any, ddp).MicroStepGraphs = Relaunched
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    store = cast(Any, dist).FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=900))
    _share_groups()
    result = work(argument)
    num_threads = len([*Path("/proc/self/task").iterdir()])
    assert num_threads <= MAX_THREADS, f"rank {rank} has {num_threads} threads: its cases should share process groups"
    if rank == 0:
        torch.save(result, Path(folder) / "result")
    dist.barrier()
    dist.destroy_process_group()


def _share_groups() -> None:
    """Makes all cases that divide the ranks into the same groups use the same process groups."""
    make: Any = dist.new_subgroups_by_enumeration
    groups: dict[str, Any] = {}

    def share(ranks: list[list[int]], **settings: Any) -> Any:
        if str(ranks) not in groups:
            groups[str(ranks)] = make(ranks, **settings)
        return groups[str(ranks)]

    cast(Any, dist).new_subgroups_by_enumeration = share


def _run_all(cases: list[Case]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for case in cases:
        try:
            results.append(_run(case))
        except Exception:
            results.append({"error": f"rank {dist.get_rank()}: {traceback.format_exc()}"})
        failed: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(failed, results[-1].get("error"))
        if any(failed):
            results[-1] = {"error": "\n".join(filter(None, failed))}
        gc.collect()
    return results


def _run(case: Case) -> dict[str, Any]:
    recipe = case.recipe
    rank, world_size = dist.get_rank(), dist.get_world_size()
    source = data.source(recipe)
    with _planted(case.fault):
        engine = create_engine(recipe, case.layout, torch.device("cpu"))
        weights = whole_tensors.weights(engine)
        digest = hashlib.sha256(
            b"".join(weight.view(torch.uint8).numpy().tobytes() for weight in weights.values())
        ).hexdigest()
        digests: list[Any] = [None] * world_size
        dist.all_gather_object(digests, digest)
        # The logits are of another shape than training: no graph of its own for them.
        eager = torch.compiler.set_stance("force_eager") if case.layout.compile != "none" else contextlib.nullcontext()
        with eager:
            logits = engine.logits(probe(recipe))
        _plant_in_step(case, cast(Any, engine))
        losses, norms = [], []
        for step in range(case.steps):
            batch = case.batch_at(step)
            coordinate = case.layout.data_parallel_rank(rank)
            indices_by_micro_step = [
                data.sample_indices(batch, data_parallel=case.layout.data_parallel, rank=coordinate, micro_step=k)
                for k in range(batch.grad_accum)
            ]
            engine.set_learning_rate(learning_rate_at(step, recipe))
            marks = Noted()
            result = engine.step(
                [torch.from_numpy(source.sequences(step, indices)) for indices in indices_by_micro_step], marks
            )
            assert tuple(marks.phases) == result.phases, f"marked {marks.phases}, the step says {result.phases}"
            norms.append(result.grad_norm.item())
            losses += losses_of([result], _gather)
        wrong = engines.mismatches(
            engine.in_effect(), recipe, case.layout, grad_accum=case.batch_at(case.steps - 1).grad_accum
        )
        assert engine.num_skipped_steps() == 0
        engine.close()
    return {"run": Run(weights, logits, losses, norms), "mismatches": wrong, "digests": digests}


class Noted:
    """Marks that record the phases."""

    def __init__(self) -> None:
        self.phases: list[StepPhase] = []

    def begin(self, phase: StepPhase) -> None:
        self.phases.append(phase)


def _gather(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _plant_in_step(case: Case, engine: Any) -> None:
    """Breaks the engine's steps as the case's fault names, if it is a fault of steps."""
    if case.fault == "missing sync" and case.layout.engine == "deepspeed":
        engine._engine.enable_backward_allreduce = False
        return
    micro_step, set_grad_accum = engine._micro_step, engine._set_grad_accum
    if case.fault == "missing sync":
        engine._micro_step = lambda tokens, *, last: micro_step(tokens, last=False)
    if case.fault == "dropped micro-batch":
        engine._micro_step = lambda tokens, *, last: micro_step(tokens, last=True) if last else torch.zeros(())
    if case.fault == "moments left behind":
        update = engine._optimizer._update
        engine._optimizer._update = lambda group, pieces, moments: update(
            group, pieces, [moment.clone() for moment in moments]
        )
    if case.fault == "not divided by grad_accum":
        engine._set_grad_accum = lambda grad_accum: set_grad_accum(1)


@contextlib.contextmanager
def _planted(fault: str) -> Generator[None, None, None]:
    """Breaks the model or its gradients as `fault` names; `_plant_in_step` handles faults of steps."""
    modeling_bloom = cast(Any, bloom_library)
    causal_mask, attention = modeling_bloom.create_causal_mask, modeling_bloom.BloomAttention.forward
    tensor = cast(Any, torch.Tensor)
    backward = tensor.backward

    def late_mask(**kwargs: Any) -> Any:
        mask = causal_mask(**kwargs)
        return torch.cat([mask[..., :1], mask[..., :-1]], dim=-1)

    def no_alibi(self: Any, *args: Any, alibi: torch.Tensor, **kwargs: Any) -> Any:
        return attention(self, *args, alibi=torch.zeros_like(alibi), **kwargs)

    def doubled(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        backward(self * 2, *args, **kwargs)

    try:
        if fault == "mask off by one":
            modeling_bloom.create_causal_mask = late_mask
        if fault == "ALiBi left out":
            modeling_bloom.BloomAttention.forward = no_alibi
        if fault == "doubled gradient":
            tensor.backward = doubled
        yield
    finally:
        modeling_bloom.create_causal_mask, modeling_bloom.BloomAttention.forward = causal_mask, attention
        tensor.backward = backward
