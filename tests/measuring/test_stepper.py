"""A `Stepper` alone is measured, out of memory too; what needs more names what the engine lacks."""

import math
import resource
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.samples import miniature
from trainers import data
from trainers.engines.create import create_engine, create_stepper, engine_class
from trainers.engines.stepper import ABILITIES, MissingAbilityError, lacks, methods_of
from trainers.host.failures import one_line
from trainers.host.watchdog import Watchdog
from trainers.measuring import gate_curves
from trainers.measuring.conditions import conditions_of
from trainers.measuring.device import CpuClock, CpuMeter
from trainers.measuring.host_load import HostSampler
from trainers.measuring.run_context import RunContext
from trainers.measuring.rung import Rung
from trainers.measuring.sampling import CpuSampler
from trainers.records.job import GateSize, Job, Timing
from trainers.records.measurement import TIMED
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout

BARE = Layout(engine="tests.measuring.bare_stepper:ENGINE")
CPU = torch.device("cpu")
BATCH = BatchPoint(micro_batch=2, grad_accum=4)
LACKS = tuple(ABILITIES)
COMPLETE = [engine_class(name) for name in ("ddp", "fsdp")]  # made first, without what trials leave out of imports


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    """Yields a watchdog that the test leaves no trace of."""
    watchdog = Watchdog(floor_s=600, on_hang=lambda activity, waited_s: None)
    yield watchdog
    watchdog.stop()


def _context(meter: CpuMeter, watchdog: Watchdog, **timing: Any) -> RunContext:
    job = Job(
        trial_id="t1",
        recorder="",
        recipe=miniature(),
        layout=BARE,
        rungs=(BATCH,),
        cluster=Cluster(device_kind="cpu", device="CPU", device_memory_gib=1.0),
        cpus_per_worker=1,
        timing=Timing(window_s=0.01, rung_s=0.02, **timing),
    )
    return RunContext(
        job=job, device=CPU, rank=0, meter=meter, sampler=CpuSampler(), host=HostSampler(), clock=CpuClock,
        watchdog=watchdog,
        gather=lambda value: [value], enter=lambda phase: None, promise=lambda work_s: None,
        conditions=lambda: conditions_of(
            job.recipe, job.layout, job.cluster, "unknown", engine_lacks=lacks(engine_class(BARE.engine))
        ),
        matmul_peak_tflops=None,
    )  # fmt: skip


def _rung(meter: CpuMeter, watchdog: Watchdog) -> Rung:
    stepper = create_stepper(miniature(), BARE, CPU)
    return Rung(_context(meter, watchdog), stepper, data.source(miniature()), BATCH)


def test_its_speed_memory_and_losses_are_measured(watchdog: Watchdog) -> None:
    meter = CpuMeter(1.0)
    meter.start(None)
    measured = _rung(meter, watchdog).measure({})
    assert measured.outcome in TIMED, measured.reason
    assert measured.tokens_per_s is not None and measured.step_time_s is not None
    assert measured.tokens_per_s == pytest.approx(8 * 32 / measured.step_time_s)
    assert measured.measured_grad_accum == 4 and not measured.step_time_derived
    assert measured.peak_allocated_gib and measured.losses[0] == pytest.approx(math.log(512), rel=0.05)
    resident_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    assert measured.peak_host_gib == pytest.approx(resident_gib, rel=0.02)
    assert measured.model_tflops_per_gpu is None and measured.hardware_tflops_per_gpu is None, "of another model"
    assert measured.conditions is not None and measured.conditions.engine_lacks == LACKS


def test_it_runs_out_of_memory_under_a_cap(watchdog: Watchdog) -> None:
    meter, limit = CpuMeter(1.0), resource.getrlimit(resource.RLIMIT_DATA)
    meter.start(1e-5)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            _rung(meter, watchdog).measure({})
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limit)


def test_the_gate_and_a_training_name_what_it_lacks(watchdog: Watchdog) -> None:
    bare = "tests.measuring.bare_stepper.BareStepper lacks: give it"
    state = ", ".join(methods_of(ABILITIES["training state"]))
    stepper = create_stepper(miniature(), BARE, CPU)
    with pytest.raises(MissingAbilityError, match=f"the numerics gate needs training state, which {bare} {state}, as"):
        gate_curves.curves_of(_context(CpuMeter(1.0), watchdog), stepper, GateSize(), BATCH)
    with pytest.raises(MissingAbilityError) as raised:
        create_engine(miniature(), BARE, CPU)
    sentence = one_line(raised.value)
    assert sentence.startswith(f"a training needs {' and '.join(LACKS)}, which {bare} in_effect, ")
    assert {method for ability in ABILITIES.values() for method in methods_of(ability)} <= set(
        sentence.replace(",", "").split()
    )
    assert [lacks(kind) for kind in COMPLETE] == [(), ()]
