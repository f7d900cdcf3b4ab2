"""Measures what a study of many measurements costs its driver: seconds to resume, memory, processor time of a trial.
From the checkout, for 100, 1,000 and 10,000 recorded measurements:

python -m benchmarks.large_study

A journal of the project's own lines is written first, for BLOOM 7b1 on four H200 with figures that the cost model
predicts, a little off. Then `platform.search --resume` runs on it, drawing on a terminal; only what Ray would do is
played: a trial writes its lines and lasts two seconds.

Its figures: docs/lab/tools.csv#large-studies.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import pty
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from platform.cluster import head
from platform.cluster.leftovers import Note
from platform.cluster.nodes import ClusterHandle
from platform.cost_model.ordering import known_columns
from platform.cost_model.predict import predict
from platform.search.__main__ import parse
from platform.search.loop import tune
from platform.search.loop.loop import SearchLoop
from platform.search.session import session
from platform.search.setup.planned_line import planned
from platform.search.setup.request import read_request
from platform.search.setup.study_setup import StudySetup, setup_of
from trainers.records.journal import Line, Measured, RungStart, StudyHeader, TrialEnd, TrialStart
from trainers.records.journal_lines import now, record, sealed, to_line
from trainers.records.measurement import Conditions, Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.codec import to_json
from trainers.spec.layout import Layout

SIZES = (100, 1_000, 10_000)
PLACE = ClusterHandle(
    cluster=Cluster(
        device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=4, capability=(9, 0)
    ),
    cpus_per_worker=1.0,
    driver_ip="127.0.0.1",
)
SPACE = ("bloom7b", "--set", f"bucket_mib={','.join(str(mib) for mib in range(10, 260, 10))}", "--tokens", "1e20")
"""Tokens for which any saving pays: the search must go on."""
NAME = "large"
WARM_TRIALS, TRIALS = 2, 8
TRIAL_S = 2.0
NO_MLFLOW = "http://127.0.0.1:9"
"""An address where nothing listens: the mirror retries now and then, as it does while MLflow is away."""


def subject() -> StudySetup:
    """Returns what the search of these options is on four H200."""
    return setup_of(read_request(parse(SPACE)), PLACE, None)


class Played:
    """Measurements that the cluster would make: the cost model's prediction, up to 10 % off, by layout and
    micro-batch.
    """

    def __init__(self, on: StudySetup) -> None:
        candidates = on.plan.candidates
        columns = known_columns(candidates, on.cluster, None)
        assert columns is not None
        prediction = predict(columns)
        points = [
            (candidate.layout.id, batch.micro_batch) for candidate in candidates for batch in candidate.batch_points()
        ]
        figures = zip(
            prediction.step.total_s, prediction.memory.needed_gib, prediction.memory.allocated_gib, strict=True
        )
        self._points = dict(zip(points, figures, strict=True))
        self._limit_gib = on.cluster.device_memory_gib

    def __call__(self, trial_id: str, recipe: Any, layout: Layout, batch: BatchPoint) -> Measurement:
        """Returns a measurement as long as a real one."""
        step_s, needed_gib, allocated_gib = (float(point) for point in self._points[layout.id, batch.micro_batch])
        digest = hashlib.sha256(f"{layout.id}{batch.micro_batch}".encode()).digest()
        step_s *= 0.9 + 0.2 * digest[0] / 255
        common: dict[str, Any] = {"recipe": recipe, "layout": layout, "batch": batch, "trial_id": trial_id}
        if needed_gib > self._limit_gib:
            reason = f"rank 0 asked for {needed_gib:.1f} GiB in forward_backward at micro-batch {batch.micro_batch}"
            return Measurement(**common, outcome=Outcome.OOM, reason=reason, phase="forward_backward", rank=0)
        windows = tuple(step_s * (1 + (byte - 128) / 12800) for byte in digest[:12])
        tokens_per_s = recipe.tokens_per_step / step_s
        return Measurement(
            **common,
            outcome=Outcome.OK,
            measured_grad_accum=3,
            step_time_s=step_s,
            step_time_low_s=step_s * 0.995,
            step_time_high_s=step_s * 1.005,
            step_time_derived=True,
            windows_s=windows,
            steps_per_window=1,
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=tokens_per_s / 4,
            model_tflops_per_gpu=tokens_per_s * 11.0e-3,
            matmul_peak_tflops=680.0,
            peak_allocated_gib=allocated_gib,
            peak_reserved_gib=allocated_gib + 2,
            peak_forward_backward_gib=allocated_gib,
            peak_optimizer_gib=allocated_gib * 0.8,
            utilization_by_device_pct=(99.0, 99.0, 98.0, 99.0),
            sm_clock_mhz=(1500.0,) * len(windows),
            power_w=(2790.0,) * len(windows),
            held_back=("power cap",) * len(windows),
            losses=windows,
            grad_norms=windows,
            step_times_s=windows,
            conditions=_CONDITIONS,
        )


_CONDITIONS = Conditions(
    device="NVIDIA H200",
    device_memory_gib=139.8,
    num_nodes=1,
    versions={"python": "3.11.7", "torch": "2.13.0", "ray": "2.60.0", "deepspeed": "0.19.8", "transformers": "5.23.0"},
    environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True", "OMP_NUM_THREADS": "1", "NCCL_NVLS_ENABLE": "0"},
    commit="0123456789ab",
)


def write_study(studies: Path, size: int) -> None:
    """Writes the journal of a study that measured `size` batch points, ladder by ladder, and was killed."""
    on = subject()
    played = Played(on)
    lines: list[Line] = [
        StudyHeader(
            name=NAME, space=on.space.name, recipes=on.recipes, cluster=on.cluster, tokens=on.request.tokens,
            options=to_json(on.request.options), searcher="guided", at=now(),
        )
    ]  # fmt: skip
    lines += [
        dataclasses.replace(planned(on.plan), at=now()),
        *(Measured(measurement=skipped, at=now()) for skipped in on.plan.skipped),
    ]
    remaining = size
    for number, candidate in enumerate(on.plan.candidates, start=1):
        trial_id, key = f"t{number:04d}", f"{candidate.recipe.id}-{candidate.layout.id}"
        common: dict[str, Any] = {"trial_id": trial_id, "at": now()}
        micro_batches = candidate.micro_batches[:remaining]
        lines.append(
            TrialStart(**common, key=key, recipe=candidate.recipe, layout=candidate.layout, micro_batches=micro_batches)
        )
        for micro_batch in micro_batches:
            batch = BatchPoint.of(candidate.recipe, candidate.layout, micro_batch)
            measurement = played(trial_id, candidate.recipe, candidate.layout, batch)
            lines += [RungStart(**common, batch=batch, deadline_s=60.0), Measured(measurement=measurement, at=now())]
            remaining -= 1
            if measurement.outcome is not Outcome.OK:
                break
        lines.append(TrialEnd(**common, key=key, state="done", wall_s=40.0, gpu_s=160.0))
        if not remaining:
            break
    assert not remaining, f"the space has {size - remaining} batch points, {size} are wanted"
    folder = studies / NAME
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("".join(sealed(json.dumps(to_line(line))) + "\n" for line in lines))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """The costs of one size."""

    resume_s: float
    """Seconds from the first line of the command's code to the first trial."""
    resume_cpu_s: float
    """Processor seconds of that, which other work on the machine lengthens less."""
    trial_cpu_s: float
    """Processor seconds of the driver in a trial, all threads, median."""
    end_s: float
    """Seconds from the last trial to the end: tables, Parquet, pictures, the printed result."""
    yardstick_s: float
    """Processor seconds of ten million additions, just before and after: how busy the machine is otherwise."""
    rss_gib: float
    """Largest resident memory."""


def resumed(studies: Path) -> Costs:
    """Resumes the study in this process."""
    cpu_s, yardstick_s = list[float](), _yardstick_s()
    at_s = {"first": 0.0, "first_cpu": 0.0, "last": 0.0}
    played = Played(subject())
    importlib.import_module("platform.searchers.guided")  # a search does while its Ray starts, which is not counted
    began_s, began_cpu_s = time.monotonic(), time.process_time()

    def run(loops: Sequence[SearchLoop], **unused: object) -> None:
        (loop,) = loops
        for _ in range(WARM_TRIALS + TRIALS):
            before_s = time.process_time()
            job = loop.next_job()
            if not at_s["first"]:
                at_s["first"], at_s["first_cpu"] = time.monotonic(), time.process_time()
            assert job is not None, loop.ended_reason
            for batch in job.rungs:
                record(loop.study.journal, RungStart(trial_id=job.trial_id, batch=batch, deadline_s=60.0))
                measured = played(job.trial_id, job.recipe, job.layout, batch)
                record(loop.study.journal, Measured(measurement=measured))
                time.sleep(TRIAL_S / len(job.rungs))
                if measured.outcome is not Outcome.OK:
                    break
            loop.on_trial_end(job.trial_id, state="done", reason="")
            cpu_s.append(time.process_time() - before_s)
        at_s["last"] = time.monotonic()

    @contextlib.contextmanager
    def recorder(journal: Path, state: Path) -> Generator[str]:
        yield "none"

    tune.run, tune.recorder = run, recorder
    tune.note_of, head.watched = lambda **_: Note(), lambda *_: contextlib.nullcontext()  # there is no Ray
    options = parse(["--resume", NAME, "--studies", str(studies)])
    session.search(options, handle=PLACE)
    steady = sorted(cpu_s[WARM_TRIALS:])
    return Costs(
        resume_s=at_s["first"] - began_s,
        resume_cpu_s=at_s["first_cpu"] - began_cpu_s,
        trial_cpu_s=steady[len(steady) // 2],
        end_s=time.monotonic() - at_s["last"],
        yardstick_s=(yardstick_s + _yardstick_s()) / 2,
        rss_gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    )


def _yardstick_s() -> float:
    began_s, total = time.process_time(), 0
    for number in range(10_000_000):
        total += number
    return time.process_time() - began_s


def in_a_process(studies: Path) -> Costs:
    """Runs `resumed` in a separate process, whose standard error is a terminal."""
    terminal, theirs = pty.openpty()
    drain = threading.Thread(target=_drain, args=(terminal,), daemon=True)
    drain.start()
    environment = {**os.environ, "TERM": "xterm", "MLFLOW_TRACKING_URI": NO_MLFLOW}
    with tempfile.NamedTemporaryFile() as out:
        command = [sys.executable, "-m", "benchmarks.large_study", "--resume", str(studies), "--into", out.name]
        subprocess.run(command, stderr=theirs, stdout=subprocess.DEVNULL, env=environment, check=True)
        os.close(theirs)
        return Costs(**json.loads(Path(out.name).read_text()))


def _drain(terminal: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(terminal, 65536):
            pass


def main() -> None:
    """Prints a row for each size."""
    command_parser = argparse.ArgumentParser(prog="python -m benchmarks.large_study")
    command_parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    command_parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)
    command_parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = command_parser.parse_args()
    if options.resume is not None:
        options.into.write_text(json.dumps(dataclasses.asdict(resumed(options.resume))))
        return
    print("measurements  journal MiB  resume s  (CPU s)  driver CPU s a trial  end s  memory GiB  yardstick s")
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            write_study(Path(folder), size)
            mib = (Path(folder) / NAME / "journal.jsonl").stat().st_size / 2**20
            costs = in_a_process(Path(folder))
        print(
            f"{size:12,}  {mib:11.1f}  {costs.resume_s:8.2f}  {costs.resume_cpu_s:8.2f}"
            f"  {costs.trial_cpu_s:20.2f}  {costs.end_s:5.1f}  {costs.rss_gib:10.2f}  {costs.yardstick_s:11.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
