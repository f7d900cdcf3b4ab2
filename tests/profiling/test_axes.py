"""Exposed communication by mesh axis in real steps on two gloo ranks under torch.profiler."""

import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.contract.cases import GLOBAL_BATCH, MOE, recipe
from tests.contract.group import run_group
from tests.contract.mesh_cases import MODELS
from trainers import data
from trainers.engines.create import create_engine
from trainers.marks.kinds import range_of
from trainers.marks.ranges import named, naming
from trainers.marks.step import StepPhase
from trainers.profiling.profiled_steps import default_group
from trainers.profiling.trace import step_sums
from trainers.records.sums import AXES, Sums
from trainers.spec.layout import Layout

pytestmark = pytest.mark.contract

_PLAIN = Layout(engine="ddp", attention="sdpa")
_DEGREES = {"tp": "tp", "cp": "cp", "pp": "pp", "dp": "dp_replicate"}
LAYOUTS = {axis: dataclasses.replace(_PLAIN, **{degree: 2}) for axis, degree in _DEGREES.items()}
LAYOUTS["ep"] = Layout(engine="fsdp", zero_stage=3, dp_shard=2, ep=2, attention="sdpa", experts="grouped")


class _Ranges:
    """Marks that name phases in the trace, and nothing else."""

    def __init__(self) -> None:
        self._range = contextlib.ExitStack()

    def begin(self, phase: StepPhase) -> None:
        self._range.close()
        self._range.enter_context(named(range_of(phase)))

    def end(self) -> None:
        self._range.close()


def _profiled(layouts: dict[str, Layout]) -> dict[str, Sums]:
    """Profiles two steps of each layout and returns this rank's sums of the second step."""
    return {axis: _sums(layout) for axis, layout in layouts.items()}


def _sums(layout: Layout) -> Sums:
    chosen = recipe(MOE if layout.ep > 1 else MODELS["llama"])
    engine: Any = create_engine(chosen, layout, torch.device("cpu"))
    tokens = torch.from_numpy(data.source(chosen).sequences(0, range(GLOBAL_BATCH)))
    micro_batches = list(tokens.chunk(2))
    marks = _Ranges()
    engine.step(micro_batches, marks)
    with naming(iter(())), profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            engine.step(micro_batches, marks)
            marks.end()
    engine.close()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return step_sums(json.loads(path.read_bytes()), grad_accum=2, default_group=default_group(layout))


def test_each_axis_has_its_own_communication() -> None:
    sums_by_axis = run_group(_profiled, LAYOUTS, 2)
    for axis, sums in sums_by_axis.items():
        parts = {exposed_axis: getattr(sums, f"exposed_{exposed_axis}_s") for exposed_axis in AXES}
        assert sum(parts.values()) == pytest.approx(sums.communication_exposed_s)
        assert parts[axis] > 0, (axis, sums_by_axis)
        others = {*AXES} - {axis, "dp"}
        assert all(parts[other] == 0 for other in others), (axis, parts)
