"""Measures what a trial costs beyond its measuring, beside an empty trial on the same machine. Run from the checkout:

python -m benchmarks.trial_overhead STUDY/journal.jsonl [--empty N]

Overhead of a trial: from its start to the next one's, less its timed windows, less at most five warm-up steps a rung,
the one that compiles among them, less the products timed for the matmul peak once a study. A session's first trial,
which also imports Tune's side, stands apart. Trials that ran a numerics gate are left out. An empty trial is a
TorchTrainer of as many workers whose function returns at once, started through the same Tune; its processes start cold,
where those of a search may have been started ahead (`trainers/startup/prestart.py`).

Averaged over the study, what a measurement costs beyond its steps is the sum of these over the batch points measured.

Its parts: `workers`, until rank 0's first line (Tune, the placement group, processes, torch, the process group);
`imports`, of the engine's libraries (in `build` where the journal is older); `build`, until the first rung (the
device's context, the model, the engine); `rungs`, what they take beyond their steps and windows; `end`, from the last
measurement to the trial's end (the workers are taken down); `next`, until another starts.

Its figures: docs/lab/measuring.csv#trial-overhead.
"""

import argparse
import dataclasses
import datetime
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platform.cluster.connection import connected
from platform.common.text import plural
from platform.study.history import History
from platform.study.journal import Tail
from trainers.records.journal import (
    GateCurves,
    Line,
    Measured,
    Peak,
    Resume,
    RungStart,
    StudyHeader,
    TrialEnd,
    TrialStart,
)
from trainers.records.measurement import Outcome

WARMUP_STEPS = 5


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """Seconds that one trial cost beyond its measuring, with their parts."""

    trial: TrialStart
    is_first: bool
    """Whether it is its session's first."""
    total_s: float
    workers_s: float
    imports_s: float
    build_s: float
    end_s: float
    next_s: float
    num_measured: int
    """Number of measured batch points."""

    @property
    def rungs_s(self) -> float:
        """Seconds that are in no other part."""
        return self.total_s - self.workers_s - self.imports_s - self.build_s - self.end_s - self.next_s


def overheads(lines: list[Line]) -> list[Overhead]:
    """Returns the overhead of each trial that measured something and was followed by another trial."""
    overheads: list[Overhead] = []
    firsts = {
        next((line.trial_id for line in lines[i:] if isinstance(line, TrialStart)), "")
        for i, line in enumerate(lines)
        if isinstance(line, StudyHeader | Resume)
    }
    starts = [(i, line) for i, line in enumerate(lines) if isinstance(line, TrialStart)]
    for (i, trial), (j, following) in itertools.pairwise(starts):
        if any(isinstance(line, Resume) for line in lines[i:j]):
            continue  # what passed between two sessions is no trial's
        if any(isinstance(line, GateCurves) for line in lines[i:j]):
            continue  # nobody timed the gate's steps, and they are no overhead
        rungs = [line for line in lines[i:j] if isinstance(line, RungStart)]
        records = [line for line in lines[i:j] if isinstance(line, Measured)]
        peak_s = sum(line.timed_s for line in lines[i:j] if isinstance(line, Peak))
        ends = [line for line in lines[i:j] if isinstance(line, TrialEnd)]
        first = next((line.measurement for line in records if line.measurement.startup_s is not None), None)
        if first is None or first.startup_s is None or not rungs or not ends:
            continue  # it ended before its first rung did
        total_s = _at(following) - _at(trial) - peak_s
        measured = [line.measurement for line in records if line.measurement.outcome is not Outcome.SKIPPED]
        for measurement in measured:
            total_s -= sum(measurement.windows_s) * measurement.steps_per_window
            # Compiling is in the first.
            total_s -= sum(measurement.step_times_s[: min(measurement.warmup_steps, WARMUP_STEPS)])
        overheads.append(
            Overhead(
                trial=trial,
                is_first=trial.trial_id in firsts,
                total_s=total_s,
                workers_s=_at(rungs[0]) - _at(trial) - first.startup_s,
                imports_s=first.import_s or 0.0,
                build_s=first.startup_s - (first.import_s or 0.0) - peak_s,
                end_s=_at(ends[-1]) - _at(records[-1]),
                next_s=_at(following) - _at(ends[-1]),
                num_measured=len(measured),
            )
        )
    return overheads


def _at(line: Line) -> float:
    return datetime.datetime.fromisoformat(line.at).timestamp()


def empty_trials(num_workers: int, count: int) -> list[float]:
    """Returns the seconds from start to start of `count` empty trials on a Ray of our own, without the first."""
    starts: list[float] = []
    with connected("local", cpu_workers=num_workers) as handle, tempfile.TemporaryDirectory() as scratch:
        import ray.tune

        class Telling(ray.tune.Callback):
            """Shows each as it starts: where the benchmark is cut what came is not lost."""

            def on_trial_result(self, *_: Any, result: dict[str, Any], **__: Any) -> None:
                starts.append(result["started_unix_s"])
                if len(starts) > 2:
                    print(f"an empty trial: {starts[-1] - starts[-2]:.1f} s", file=sys.stderr, flush=True)

        on_cuda = handle.has_gpus
        config = {"workers": num_workers, "gpu": on_cuda, "cpus": handle.cpus_per_worker, "storage": f"{scratch}/train"}
        ray.tune.Tuner(
            ray.tune.with_resources(_empty, {"CPU": 0.1}),
            param_space={**config, "number": ray.tune.grid_search(list(range(count + 2)))},
            tune_config=ray.tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),
            run_config=ray.tune.RunConfig(name="empty", storage_path=scratch, verbose=0, callbacks=[Telling()]),
        ).fit()
    return [after - before for before, after in itertools.pairwise(starts)][1:]


def _empty(config: Mapping[str, Any]) -> None:
    import ray.train
    import ray.tune
    from ray.train.torch import TorchConfig, TorchTrainer

    started = time.time()
    resources = {"CPU": config["cpus"], **({"GPU": 1} if config["gpu"] else {})}
    TorchTrainer(
        _nothing,
        torch_config=TorchConfig(backend="nccl" if config["gpu"] else "gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=config["workers"], use_gpu=config["gpu"], resources_per_worker=resources
        ),
        run_config=ray.train.RunConfig(name=f"empty-{config['number']}", storage_path=config["storage"]),
    ).fit()
    ray.tune.report({"started_unix_s": started})


def _nothing() -> None:
    pass


def main() -> None:
    """Prints the overhead of each trial, medians by engine, their sum a measurement, and the empty trials' seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--empty", type=int, default=0, metavar="N", help="also time N empty trials here")
    options = parser.parse_args()
    lines = Tail(options.journal).read()
    header = History(lines).header
    assert header is not None, f"{options.journal} has no first line"
    by_engine: dict[str, list[Overhead]] = {}
    for overhead in (trials := overheads(lines)):
        first = " (first of a session)" if overhead.is_first else ""
        print(
            f"{overhead.trial.trial_id}  {overhead.total_s:5.1f} s  {overhead.trial.layout.label}{first}:"
            f" {_parts([overhead])}"
        )
        if not overhead.is_first:
            by_engine.setdefault(overhead.trial.layout.engine, []).append(overhead)
    print(f"on {header.cluster.label}, commit {header.commit}")
    for engine, group in sorted(by_engine.items()):
        print(f"  {engine:10} {_summary([trial_overhead.total_s for trial_overhead in group])}")
        print(f"  {'':10} {_parts(group)}")
    if trials:
        total_s, measured = sum(trial.total_s for trial in trials), sum(trial.num_measured for trial in trials)
        print(f"  a measurement: {total_s / measured:.1f} s beyond its steps ({total_s:.0f} s over {measured} of them)")
    if options.empty:
        print(f"  {'empty':10} {_summary(empty_trials(header.cluster.num_devices, options.empty))}")


def _summary(seconds: list[float]) -> str:
    spread = f"{min(seconds):.1f} to {max(seconds):.1f}"
    return f"median {statistics.median(seconds):.1f} s of {plural(len(seconds), 'trial')} ({spread})"


def _parts(trials: list[Overhead]) -> str:
    """Returns the median of each part over trials; these need not add up to the median of the whole."""
    names = ("workers", "imports", "build", "rungs", "end", "next")
    return ", ".join(
        f"{name} {statistics.median(getattr(trial, f'{name}_s') for trial in trials):.1f}" for name in names
    )


if __name__ == "__main__":
    main()
