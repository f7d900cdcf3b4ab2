"""Runs some steps of one batch point under torch.profiler, in a separate trial after the search. Every rank is
profiled, so that none waits for another's overhead; rank 0's trace is kept and summed.
"""

import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torch import nn
from torch.profiler import ProfilerActivity, profile

from trainers.data import Source
from trainers.engines.stepper import HasModels, Stepper, marks_micro_steps
from trainers.host.failures import RungFailure
from trainers.marks.kinds import ATTENTION, LOSS
from trainers.marks.ranges import naming
from trainers.measuring.ladder import timed_accum
from trainers.measuring.run_context import RunContext
from trainers.measuring.runner import StepRunner
from trainers.profiling.trace import has_kernels, step_sums
from trainers.records.journal import Profile
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import json_object
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import AXES
from trainers.spec.recipe import Recipe

WARMUP_STEPS = 3
STEPS = 4
"""Number of profiled optimizer steps; the first is not summed."""
MOST_TRACE_MIB = 64.0
"""Largest size of a compressed trace that is stored; a larger one is summed and discarded."""


def run(context: RunContext, engine: Stepper, source: Source, batch: BatchPoint) -> tuple[Profile, bytes] | None:
    """Profiles `batch`. Returns the sums and the compressed trace (empty if too large) on rank 0, None on other ranks.
    A step has as many micro-steps as in the search's measurements; the sums are scaled to the full step.

    Raises:
        RungFailure: the profiler recorded no work of the device.
    """
    job = context.job
    accum = timed_accum(batch.grad_accum) if marks_micro_steps(engine) else batch.grad_accum
    rung = StepRunner(context, engine, source, BatchPoint(micro_batch=batch.micro_batch, grad_accum=accum))
    rung.warm_up(WARMUP_STEPS)
    context.meter.release()  # the point fitted before; excludes the profiler's own memory
    on_cuda = context.device.type == "cuda"
    layout = job.layout
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with naming(_modules(engine, layout.compile)):
        rung.warm_up(1)  # the first use of the names, which costs time
        # Shapes identify the head if no range can.
        with profile(activities=activities, record_shapes=layout.compile == "model") as profiler:
            rung.window(STEPS)
    context.watchdog.beat("the profile's trace", allowed_s=job.first_step_s)
    if context.rank != 0:
        return None
    context.promise(job.first_step_s)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        text = path.read_bytes()
    trace = json_object(text)
    if on_cuda and not has_kernels(trace):
        reason = "torch.profiler saw no kernel of the device: CUPTI is not there, or another profiler holds it"
        raise RungFailure(Outcome.FAILED, reason, phase="profile", rank=0)
    widths = _head_widths(job.recipe, batch) if layout.compile == "model" else frozenset[int]()
    packed = gzip.compress(text, compresslevel=6)
    result = Profile(
        trial_id=job.trial_id,
        recipe=job.recipe,
        layout=layout,
        batch=batch,
        device_kind=job.cluster.device_kind,
        num_steps=STEPS - 1,
        measured_grad_accum=accum,
        sums=step_sums(trace, grad_accum=batch.grad_accum, head_widths=widths, default_group=default_group(layout)),
        trace_mib=len(packed) / 2**20,
    )
    return result, packed if result.trace_mib <= MOST_TRACE_MIB else b""


def _modules(engine: Stepper, compiled: str) -> Iterator[tuple[str, nn.Module]]:
    """Yields the modules outside compiled code whose forward passes are named, with the name; none for an engine that
    shows no models.
    """
    for model in engine.models if isinstance(engine, HasModels) else ():
        if compiled != "model" and model.has_head:
            yield LOSS, model.head
        if compiled == "none":
            for module in model.module.modules():
                # The ending of the class names of every architecture's attention and of its replacements.
                if type(module).__name__.endswith("Attention"):
                    yield ATTENTION, module


def default_group(layout: Layout) -> str:
    """Returns the axes that the process group of all ranks spans, in the form of `Mesh`'s descriptions."""
    return "+".join(axis for axis in AXES if getattr(layout, axis) > 1)


def _head_widths(recipe: Recipe, batch: BatchPoint) -> frozenset[int]:
    """Returns sizes that only products over the vocabulary have; empty if another width of the model is equal. The
    compiler pads the vocabulary to a multiple of 16 bytes.
    """
    model = recipe.model
    widths = {-(-model.vocab_size // multiple) * multiple for multiple in (1, 4, 8)}
    others = {model.hidden_size, model.ffn_size, 2 * model.ffn_size, 3 * model.hidden_size}
    others.add(model.attention_width + 2 * model.num_kv_heads * model.head_dim)
    others |= {recipe.seq_len, batch.micro_batch * recipe.seq_len}
    return frozenset() if widths & others else frozenset(widths)
