"""The train function of one rank: builds the engine, then measures the ladder's batch points; each measurement is
written to disk before the next.
"""

import math
import statistics
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import ray
import ray.train
import torch
import torch.distributed as dist

import trainers.profiling.profiled_steps as profiling
from trainers import data
from trainers.engines.create import create_stepper, engine_class
from trainers.engines.stepper import Stepper, lacks
from trainers.host.failures import RungFailure, one_line, size
from trainers.host.near import keep_near
from trainers.host.watchdog import Watchdog
from trainers.measuring import conditions, gate_curves, matmul_peak, probe, warnings_log
from trainers.measuring.device import CpuClock, CpuMeter, CudaClock, CudaMeter, Meter
from trainers.measuring.host_load import HostSampler
from trainers.measuring.ladder import deadline_s, is_hopeless, may_begin, misfits, with_headroom_gib
from trainers.measuring.run_context import RunContext
from trainers.measuring.rung import Rung
from trainers.measuring.sampling import CpuSampler, NvmlSampler, Sampler
from trainers.models import float8
from trainers.records.job import GateSize, Job, MemoryPoint, gate_batch
from trainers.records.journal import Peak
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec import engines
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import from_json, to_json
from trainers.spec.placement import placement_refusal
from trainers.startup import prestart
from trainers.trial import recorder


def train(config: Mapping[str, Any]) -> bool:
    """Runs as Ray Train's train function; `config` is a `Job` as JSON. Returns whether time ran out before the ladder's
    end.

    Raises:
        RungFailure: an OOM, a divergence or a mismatch, with its sizes and rank; the trial records it.
    """
    started_s = time.perf_counter()
    warnings_log.watch()
    prestart.keep_to_share()
    job = from_json(Job, config)
    worker = TrialWorker(job, started_s)
    try:
        return worker.run()
    except Exception as error:
        worker.fail(error)


class TrialWorker:
    def __init__(self, job: Job, started_s: float) -> None:
        self.job = job
        self.started_s = started_s
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        on_cuda = job.cluster.device_kind == "cuda"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
        self.meter: Meter = CudaMeter() if on_cuda else CpuMeter(job.cluster.device_memory_gib)
        self.sampler: Sampler = NvmlSampler() if on_cuda else CpuSampler()
        if job.shares_nodes and isinstance(self.sampler, NvmlSampler):
            keep_near(self.sampler.pci_address())
        self.host = HostSampler()
        # Small agreements between hosts use gloo, so that they take neither device memory nor device time.
        self.control = dist.new_group(backend="gloo") if on_cuda else dist.group.WORLD
        self._recorder = recorder.find(job.recorder)
        self.watchdog = Watchdog(floor_s=job.hang_floor_s, on_hang=self._hung)
        self.phase = "init"
        self.batch: BatchPoint = job.rungs[0] if job.rungs else job.profile or gate_batch(job)
        self.matmul_peak_tflops = job.matmul_peak_tflops

    def _call_recorder(self, method: str, *arguments: Any, limit_s: float = recorder.ANSWER_S) -> Any:
        return recorder.call(self._recorder, method, *arguments, limit_s=limit_s)

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's `value`, by rank, on every rank."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values

    def run(self) -> bool:
        """Builds the engine and measures the ladder; returns whether time ran out before its end."""
        job = self.job
        self._set_status("init", None, 2 * job.first_step_s)
        self.watchdog.beat("init", allowed_s=job.first_step_s)
        if not job.layout.steps_on_host:  # an optimizer that steps on the host needs all its cores
            num_workers = ray.train.get_context().get_local_world_size()
            prestart.ask(num_workers, job.cpus_per_worker, shares_node=job.shares_nodes)
        self._check_place()
        if job.probe_s is not None:
            self._probe(job.probe_s)
        if self.matmul_peak_tflops is None and job.recipe.has_model:  # the precision of its products is known
            self._measure_peaks()
        source = data.source(job.recipe)
        import_s = self._import_engine()
        self.meter.start(job.cap_gib, held_gib=job.held_gib)
        engine = create_stepper(job.recipe, job.layout, self.device)
        started = {"startup_s": time.perf_counter() - self.started_s, "import_s": import_s}
        context = self._context()
        if job.gate is not None:
            self._run_gate(context, engine, job.gate)
        if job.profile is not None:
            points = source.of_batch(job.profile.global_batch(job.layout))
            self._profile(context, engine, points, job.profile)
        late = self._climb(context, engine, source, started)
        self.watchdog.pause()
        engine.close()
        return late

    def _check_place(self) -> None:
        """Reports the ranks' nodes to the recorder.

        Raises:
            RungFailure: the layout's groups do not fit the nodes.
        """
        places = self.gather((ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()))
        nodes, addresses = [node for node, _ in places], [address for _, address in places]
        if reason := placement_refusal(self.job.layout, nodes):
            raise RungFailure(Outcome.FAILED, reason, phase="init", rank=self.rank)
        if self.rank == 0:
            self._call_recorder("place", self.job.trial_id, nodes, addresses)

    def _import_engine(self) -> float:
        """Imports the engine before the memory baseline is taken, so that it does not count as the model's; returns the
        seconds.

        Raises:
            RungFailure: the engine's source differs from its source where the search was started.
        """
        job, began_s = self.job, time.perf_counter()
        engine_class(job.layout.engine)
        if job.recipe.float8_scaling:
            float8.load()
        if job.engine_source and (source_here := engines.source_hash(job.layout.engine)) != job.engine_source:
            reason = (
                f"engine {job.layout.engine} has source {source_here} on rank {self.rank} and {job.engine_source} where"
                " the search was started: give all nodes the same"
            )
            raise RungFailure(Outcome.FAILED, reason, phase="init", rank=self.rank)
        return time.perf_counter() - began_s

    def _climb(self, context: RunContext, engine: Stepper, source: data.Source, started: Mapping[str, float]) -> bool:
        """Measures the ladder's batch points, ascending; returns whether time ran out before its end."""
        job, memory_points, stop_at_s = self.job, list(self.job.known_memory), self._stop_at_s()
        measured: Measurement | None = None
        for number, batch in enumerate(job.rungs):
            is_sure = job.runs_one and measured is None
            if not is_sure and not all(self.gather(may_begin(stop_at_s - time.monotonic(), measured))):
                return True
            if not self._fits(memory_points, batch):
                break
            self.batch = batch
            self._set_status("steps", batch, deadline_s(job, job.first_step_s, self.watchdog.allowance_s))
            rung = Rung(context, engine, source.of_batch(batch.global_batch(job.layout)), batch)
            measured = rung.measure(started if number == 0 else {})
            self._record(measured)
            if measured.outcome not in TIMED or is_hopeless(job, measured):
                break
            assert measured.peak_forward_backward_gib is not None and measured.peak_optimizer_gib is not None
            memory_points.append(
                MemoryPoint(
                    micro_batch=batch.micro_batch,
                    forward_backward_gib=measured.peak_forward_backward_gib,
                    optimizer_gib=measured.peak_optimizer_gib,
                )
            )
        return False

    def _stop_at_s(self) -> float:
        """Returns the time on this node's monotonic clock after which no batch point may start; infinite except on rank
        0 of a job with a limit.
        """
        if self.rank or self.job.stop_at_s is None:
            return math.inf
        left_s: float = self._call_recorder("seconds_until", self.job.stop_at_s)
        return time.monotonic() + left_s

    def fail(self, error: Exception) -> NoReturn:
        """Raises the failure that the trial records, made from `error`."""
        sizes = self.meter.out_of_memory(error)
        self.meter.release()
        self.watchdog.pause()  # destroying a failed group may take a while, and is no hang
        if isinstance(error, (RungFailure, recorder.RecorderError)):  # a RecorderError says nothing about the layout
            raise error
        if sizes is None:
            # With states in host memory it is these that found no room there: no fault of the trainer.
            ran_out = isinstance(error, MemoryError) and self.job.layout.holds_on_host
            outcome = Outcome.OOM if ran_out else Outcome.FAILED
            raise RungFailure(outcome, one_line(error), phase=self.phase, rank=self.rank) from error
        reason = (
            f"rank {self.rank} asked for {size(sizes['asked_gib'])} in {self.phase} at micro-batch"
            f" {self.batch.micro_batch}, with {size(sizes['allocated_gib'])} allocated and"
            f" {size(sizes['reserved_gib'])} reserved"
        )
        if others_gib := self.sampler.others_gib():
            reason += f"; other processes held {size(others_gib)} of its device"
        raise RungFailure(Outcome.OOM, reason, phase=self.phase, rank=self.rank, **sizes) from None

    def _measure_peaks(self) -> None:
        """Measures the matmul peak of all devices at once, because they share power and cooling in training too."""
        precision = self.job.recipe.compute_precision
        rates = self.gather(matmul_peak.measure_tflops(self.device, precision, self.job.timing.peak_s))
        nodes = self.gather(ray.util.get_node_ip_address())
        self.matmul_peak_tflops = statistics.median(rates)
        if self.rank == 0:
            peak = Peak(
                device=self.job.cluster.device,
                precision=precision,
                tflops=self.matmul_peak_tflops,
                spread=(max(rates) - min(rates)) / self.matmul_peak_tflops,
                by_device=tuple(rates),
                nodes=tuple(nodes),
                timed_s=self.job.timing.peak_s,
            )
            self._call_recorder("peak", to_json(peak))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _probe(self, left_s: float) -> None:
        """Measures devices and links for `left_s` seconds, to give the study's predictions measured rates."""
        figures = probe.probe(
            left_s=left_s,
            node=ray.get_runtime_context().get_node_id(),
            address=ray.util.get_node_ip_address(),
            precision=self.job.recipe.compute_precision,
        )
        if figures is not None:
            # The driver adds the fingerprint and the software of all nodes.
            entry = {"fingerprint": "", "software": {}, "cluster": to_json(self.job.cluster), **figures}
            self._call_recorder("probed", entry)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _run_gate(self, context: RunContext, engine: Stepper, size: GateSize) -> None:
        self.batch = batch = gate_batch(self.job)
        self._set_status("gate", None, deadline_s(self.job, self.job.first_step_s, self.watchdog.allowance_s))
        curves = gate_curves.curves_of(context, engine, size, batch)
        if self.rank == 0:
            self._call_recorder("gate", to_json(curves))

    def _profile(self, context: RunContext, engine: Stepper, source: data.Source, batch: BatchPoint) -> None:
        self._set_status("profile", None, 2 * deadline_s(self.job, self.job.first_step_s, self.watchdog.allowance_s))
        profiled = profiling.run(context, engine, source, batch)
        if profiled is not None:
            profile, trace = profiled
            self._call_recorder("profile", to_json(profile), trace)
        self.gather(None)

    def _fits(self, memory_points: list[MemoryPoint], batch: BatchPoint) -> bool:
        """Returns whether to run the batch point: its predicted memory leaves head-room on every rank, without which it
        cannot win, or the job tries points that are predicted not to fit. Otherwise records it and all larger ones as
        skipped.
        """
        if self.job.tries_misfit:
            return True
        limit_gib = min(self.gather(with_headroom_gib(self.meter.limit_gib(), self.meter.outside_gib())))
        above = self.job.rungs[self.job.rungs.index(batch) :]
        refused = misfits(self.job, memory_points, above, limit_gib)
        if not refused or refused[0].batch != batch:
            return True
        for measurement in refused:
            self._record(measurement)
        return False

    def _record(self, measurement: Measurement) -> None:
        """Sends the measurement to the recorder from rank 0; all ranks continue when it is on disk."""
        self.phase = "record"
        self.watchdog.beat("record", allowed_s=self.job.first_step_s)
        if self.rank == 0:
            self._write(measurement)
        self.gather(None)

    def _write(self, measurement: Measurement, limit_s: float = recorder.ANSWER_S) -> None:
        rungs = to_json(self.job.rungs)
        self._call_recorder("measured", self.job.trial_id, to_json(measurement), rungs, limit_s=limit_s)

    def _set_status(self, phase: str, batch: BatchPoint | None, allowed_s: float) -> None:
        if self.rank == 0:
            self._call_recorder("set_status", self.job.trial_id, phase, batch and to_json(batch), allowed_s)

    def _context(self) -> RunContext:
        """Returns the run context of this rank; call it after the matmul peak is known."""
        return RunContext(
            job=self.job,
            rank=self.rank,
            device=self.device,
            meter=self.meter,
            sampler=self.sampler,
            host=self.host,
            watchdog=self.watchdog,
            clock=CudaClock if self.device.type == "cuda" else CpuClock,
            gather=self.gather,
            enter=self._enter,
            promise=self._promise,
            conditions=lambda: conditions.conditions_of(
                self.job.recipe,
                self.job.layout,
                self.job.cluster,
                self.job.commit,
                engine_lacks=lacks(engine_class(self.job.layout.engine)),
            ),
            matmul_peak_tflops=self.matmul_peak_tflops,
        )

    def _enter(self, phase: str) -> None:
        self.phase = phase

    def _promise(self, work_s: float) -> None:
        """Extends the trial's deadline by the seconds that the next work should take."""
        if self.rank == 0:
            allowed_s = deadline_s(self.job, work_s, self.watchdog.allowance_s)
            # Waits, because nothing may be sent during a timed window, but not for long, because the batch point does
            # not need the answer.
            ray.wait([self._recorder.promise.remote(self.job.trial_id, allowed_s)], timeout=5)

    def _hung(self, activity: str, waited_s: float) -> None:
        """Records a hang; the watchdog's thread calls it before this process ends."""
        reason = f"rank {self.rank} made no progress for {waited_s:.0f} s at {activity}"
        measurement = self.job.measurement(self.batch, Outcome.HUNG, phase=self.phase, rank=self.rank, reason=reason)
        self._write(measurement, limit_s=30)
