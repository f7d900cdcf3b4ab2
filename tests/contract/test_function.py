"""A function of the user's own is measured as engines are: the page's example on two ranks, and what goes wrong."""

import contextlib
import dataclasses
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from search_spaces.candidate import Candidate
from search_spaces.function import space_of_function
from tests.contract.group import run_group
from trainers import data
from trainers.engines.create import create_stepper, engine_class
from trainers.engines.stepper import ABILITIES, lacks
from trainers.host.watchdog import Watchdog
from trainers.measuring.conditions import conditions_of
from trainers.measuring.device import CpuClock, CpuMeter
from trainers.measuring.host_load import HostSampler
from trainers.measuring.run_context import RunContext
from trainers.measuring.rung import Rung
from trainers.measuring.sampling import CpuSampler
from trainers.records.job import Job, Timing
from trainers.records.measurement import TIMED, Measurement
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster

PAGE = Path(__file__).parents[2] / "docs" / "your-function.md"
CPU = torch.device("cpu")


def example() -> str:
    """Returns the page's function."""
    text = PAGE.read_text(encoding="utf-8")
    return next(code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def build" in code)


def _candidates(folder: Path, num_devices: int, *sets: str, tokens: int = 4096) -> tuple[Candidate, ...]:
    space = space_of_function("own.py:build", sets, folder=folder, tokens_per_step=tokens, seq_len=64)
    return space.candidates(num_devices)[0]


def _gather(value: Any) -> list[Any]:
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _measured(candidate: Candidate, batches: tuple[BatchPoint, ...], cap_gib: float | None = None) -> list[Measurement]:
    """Returns the measurements of a ladder on this rank, each point in the same process."""
    recipe, layout = candidate.recipe, candidate.layout
    cluster = Cluster(device_kind="cpu", device="CPU", device_memory_gib=1.0, devices_per_node=layout.world_size)
    timing = Timing(window_s=0.01, rung_s=0.05)
    job = Job(
        trial_id="t1", recorder="", recipe=recipe, layout=layout, rungs=batches, cluster=cluster, cpus_per_worker=1,
        timing=timing,
    )  # fmt: skip
    meter = CpuMeter(1.0)
    meter.start(cap_gib)
    context = RunContext(
        job=job, device=CPU, rank=dist.get_rank() if dist.is_initialized() else 0, meter=meter, sampler=CpuSampler(),
        host=HostSampler(), clock=CpuClock, watchdog=Watchdog(floor_s=600, on_hang=lambda activity, waited_s: None),
        gather=_gather, enter=lambda phase: None, promise=lambda work_s: None, matmul_peak_tflops=None,
        conditions=lambda: conditions_of(
            recipe, layout, cluster, "unknown", engine_lacks=lacks(engine_class(layout.engine))
        ),
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.callback(context.watchdog.stop)
        stepper = create_stepper(recipe, layout, CPU)
        stack.callback(stepper.close)
        return [Rung(context, stepper, data.source(recipe), batch).measure({}) for batch in batches]


def _ladder(candidate: Candidate) -> list[Measurement]:
    return _measured(candidate, candidate.batch_points()[-2:])


@pytest.mark.contract
def test_the_page_s_example_climbs_on_two_ranks(tmp_path: Path) -> None:
    """Checks figures, memory by phase and first losses of two micro-batches in the same processes."""
    (tmp_path / "own.py").write_text(example())
    first, *others = _candidates(tmp_path, 2, "bucket=1,25", "foreach=true,false")
    assert len(others) == 3 and first.micro_batches == (1, 2, 4, 8, 16, 32)
    measured: list[Measurement] = run_group(_ladder, first, 2)
    assert [m.batch for m in measured] == list(first.batch_points()[-2:])
    for m in measured:
        assert m.outcome in TIMED, m.reason
        assert m.step_time_s and m.tokens_per_s == pytest.approx(4096 / m.step_time_s)
        assert m.optimizer_step_s and m.optimizer_step_s < m.step_time_s and not m.step_time_derived
        assert m.losses[0] == pytest.approx(5.6, abs=0.5) and m.losses[-1] < m.losses[0] and m.grad_norms == ()
        assert m.peak_optimizer_gib and m.model_tflops_per_gpu is None
        assert m.conditions is not None and m.conditions.engine_lacks == tuple(ABILITIES)
    smaller, larger = (m.peak_forward_backward_gib for m in measured)
    assert smaller and larger and larger > 1.5 * smaller, "activations grow, and the former model is gone"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Runs products on one thread, as a trial's workers do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


LOOP = """
import torch
from torch import nn
def build(layout):
    assert layout["kind"] is None or isinstance(layout["kind"], (str, int, float))
    weight = nn.Parameter(torch.ones(()))
    def step():
        kind = layout["kind"]
        if kind == "memory":
            torch.ones(10**6)
        if kind == "axis":
            layout["other"]
        if kind == "tokens":
            return 1.0, 100
        return {"told": (1.0, 64), "nan": float("nan"), "vector": torch.ones(2), "tensor": weight}.get(kind, 2)
    return None if layout["kind"] == "no step" else step
"""


@pytest.mark.usefixtures("one_thread")
class TestOneRank:
    def _run(self, folder: Path, kind: str, cap_gib: float | None = None) -> Measurement:
        (folder / "own.py").write_text(LOOP)
        (candidate,) = _candidates(folder, 1, f"kind={kind}", "micro_batch=1", tokens=64)
        return _measured(candidate, candidate.batch_points(), cap_gib)[0]

    @pytest.mark.parametrize(("kind", "loss"), [("told", 1.0), ("tensor", 1.0), ("7", 2.0)])
    def test_a_step_s_loss_is_a_number_or_a_tensor(self, tmp_path: Path, kind: str, loss: float) -> None:
        measured = self._run(tmp_path, kind)
        assert measured.outcome in TIMED and set(measured.losses) == {loss}

    def test_a_loss_that_is_not_finite_is_a_divergence(self, tmp_path: Path) -> None:
        assert self._run(tmp_path, "nan").outcome == "diverged"

    def test_it_runs_out_of_memory_under_a_cap(self, tmp_path: Path) -> None:
        limit = resource.getrlimit(resource.RLIMIT_DATA)
        try:
            with pytest.raises(torch.OutOfMemoryError):
                self._run(tmp_path, "memory", cap_gib=1e-3)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, limit)

    @pytest.mark.parametrize(
        ("kind", "error", "sentence"),
        [
            (
                "tokens",
                ValueError,
                "its step at micro-batch 1 and accumulation 1 has 100 tokens where all points",
            ),
            ("vector", ValueError, "a step returns its loss, a number or a tensor of one, .* a tensor of shape"),
            ("no step", ValueError, "the function returns the step, a function without arguments, got NoneType"),
            ("axis", KeyError, "the layout has no axis 'other': its axes are kind"),
        ],
    )
    def test_what_is_no_step_is_a_sentence(
        self, tmp_path: Path, kind: str, error: type[Exception], sentence: str
    ) -> None:
        with pytest.raises(error, match=sentence):
            self._run(tmp_path, kind)

    def test_another_file_than_the_study_s_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "own.py").write_text(LOOP)
        (candidate,) = _candidates(tmp_path, 1, "kind=1", tokens=64)
        (tmp_path / "own.py").write_text(f"{LOOP}\n")
        with pytest.raises(ValueError, match=r"own\.py is another file here than where the search was started"):
            create_stepper(candidate.recipe, candidate.layout, CPU)

    def test_a_module_s_function_is_found_from_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "own_loop.py").write_text(LOOP.replace('"told"', '"again"'))
        space = space_of_function(
            "package.own_loop:build", ["kind=again"], folder=tmp_path, tokens_per_step=64, seq_len=64
        )
        ((candidate,), _) = space.candidates(1)
        assert _measured(candidate, candidate.batch_points())[0].losses[0] == 1.0

    def test_values_arrive_as_numbers_and_texts(self, tmp_path: Path) -> None:
        (tmp_path / "own.py").write_text("def build(layout):\n    raise ValueError(repr(dict(layout.axes)))\n")
        (candidate,) = _candidates(tmp_path, 1, "a=2", "b=0.5", "c=true", "d=x", "e=null", tokens=64)
        with pytest.raises(ValueError, match=re.escape("{'a': 2, 'b': 0.5, 'c': True, 'd': 'x', 'e': None}")):
            _measured(dataclasses.replace(candidate), candidate.batch_points())
