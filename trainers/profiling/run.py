"""The profiled run: some steps of one batch point under torch.profiler, in a trial of its own after the search.

Every rank is profiled, so that none waits for another's bookkeeping; rank 0's trace is kept and summed.
"""

import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from trainers.codec import to_json
from trainers.data import Source
from trainers.engines import Engine
from trainers.failures import RungFailure
from trainers.journal import Profile
from trainers.layout import BatchPoint
from trainers.measurement import Outcome
from trainers.measuring.ladder import SHORT_ACCUM
from trainers.measuring.rung import Rung
from trainers.profiling.kinds import ATTENTION, LOSS, MICRO_STEP, OPTIMIZER_STEP
from trainers.profiling.ranges import named, naming
from trainers.profiling.trace import has_kernels, step_sums

if TYPE_CHECKING:
    from trainers.worker import Worker

WARMUP_STEPS = 3
STEPS = 4
"""Optimizer steps profiled; the first is not summed."""
MOST_TRACE_MIB = 64.0
"""Of a compressed trace that is kept; a larger one is summed and thrown away."""


def run(worker: "Worker", engine: Engine, source: Source, batch: BatchPoint) -> None:
    """Profiles `batch` and hands sums and trace to the recorder.

    A step has as many micro-steps as a search's own measurements have; the sums are brought to the whole step's.

    Raises:
        RungFailure: the profiler saw nothing of the device.
    """
    accum = min(batch.grad_accum, SHORT_ACCUM)
    short = BatchPoint(micro_batch=batch.micro_batch, grad_accum=accum)
    rung = Rung(worker, cast(Engine, _Named(engine)), source, short)
    rates = [worker.job.recipe.learning_rate] * WARMUP_STEPS
    rung.curves(rates)
    worker.meter.release()  # the point has fitted before; the profiler's own memory is no part of it
    on_cuda = worker.device.type == "cuda"
    layout = worker.job.layout
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with naming(_modules(engine, layout.compile)):
        rung.curves(rates[:1])  # the names' own first time
        # Shapes tell the head where no range can.
        with profile(activities=activities, record_shapes=layout.compile == "model") as profiler:
            rung.window(STEPS)
    worker.watchdog.beat("the profile's trace", allowed_s=worker.job.first_step_s)
    if worker.rank == 0:
        worker.promise(worker.job.first_step_s)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            text = path.read_bytes()
        trace = json.loads(text)
        if on_cuda and not has_kernels(trace):
            reason = "torch.profiler saw no kernel of the device: CUPTI is not there, or another profiler holds it"
            raise RungFailure(Outcome.FAILED, reason, phase="profile", rank=0)
        widths = _head_widths(worker) if layout.compile == "model" else frozenset[int]()
        sums = step_sums(trace, grad_accum=batch.grad_accum, head_widths=widths)
        packed = gzip.compress(text, compresslevel=6)
        found = Profile(
            trial_id=worker.job.trial_id,
            recipe=worker.job.recipe,
            layout=layout,
            batch=batch,
            device_kind=worker.job.cluster.device_kind,
            num_steps=STEPS - 1,
            measured_grad_accum=accum,
            sums=sums,
            trace_mib=len(packed) / 2**20,
        )
        kept = packed if found.trace_mib <= MOST_TRACE_MIB else b""
        worker.call_recorder("profile", to_json(found), kept)
    worker.gather(None)


class _Named:
    """An engine whose parts of a step stand in the trace by name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def micro_step(self, tokens: torch.Tensor, *, last: bool) -> torch.Tensor:
        with named(MICRO_STEP):
            return self._engine.micro_step(tokens, last=last)

    def optimizer_step(self) -> torch.Tensor:
        with named(OPTIMIZER_STEP):
            return self._engine.optimizer_step()


def _modules(engine: Engine, compiled: str) -> Iterator[tuple[str, nn.Module]]:
    """Modules whose forward passes are named, with the name: those that stand outside compiled code."""
    model = engine.model
    if compiled != "model":
        yield LOSS, model.head
    if compiled == "none":
        for module in model.module.modules():
            # The name of every architecture's, and of what is put in its place.
            if type(module).__name__.endswith("Attention"):
                yield ATTENTION, module


def _head_widths(worker: "Worker") -> frozenset[int]:
    """Sizes that only a product over the vocabulary has; none where another width of the model is the same.

    The compiler pads the vocabulary to a multiple of 16 bytes.
    """
    model, batch = worker.job.recipe.model, worker.batch
    widths = {-(-model.vocab_size // multiple) * multiple for multiple in (1, 4, 8)}
    others = {model.hidden_size, model.ffn_size, 2 * model.ffn_size, 3 * model.hidden_size}
    others.add(model.hidden_size + 2 * model.num_kv_heads * model.head_dim)
    others |= {worker.job.recipe.seq_len, batch.micro_batch * worker.job.recipe.seq_len}
    return frozenset() if widths & others else frozenset(widths)
