"""What a trial costs beyond its measuring, beside an empty trial on the same machine. Run from the checkout:

python -m benchmarks.trial_overhead STUDY/journal.jsonl [--empty N]

Overhead of a trial: from its start to the next one's, less its timed windows, less at most five warm-up steps a rung,
less compiling. The first trial of a session also imports Tune's side and measures the matmul peak: it stands apart.
Trials that ran a numerics gate are left out. An empty trial is a TorchTrainer of as many workers whose function returns
at once, started through the same Tune.
"""

import argparse
import datetime
import itertools
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platform.cluster import connected
from platform.study.history import History
from platform.study.journal import Tail
from trainers.journal import GateCurves, Line, Measured, Resume, StudyHeader, TrialStart
from trainers.measurement import Outcome

WARMUP_STEPS = 5


def overheads(lines: list[Line]) -> list[tuple[TrialStart, float, bool]]:
    """(trial, seconds of overhead, whether it was its session's first) of each trial that another one followed."""
    found: list[tuple[TrialStart, float, bool]] = []
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
        measured = [line.measurement for line in lines[i:j] if isinstance(line, Measured)]
        seconds = _at(following) - _at(trial)
        for each in measured:
            if each.outcome is not Outcome.SKIPPED:
                seconds -= sum(each.windows_s) * each.steps_per_window + (each.compile_s or 0.0)
                seconds -= sum(each.step_times_s[: min(each.warmup_steps, WARMUP_STEPS)])
        found.append((trial, seconds, trial.trial_id in firsts))
    return found


def _at(line: TrialStart) -> float:
    return datetime.datetime.fromisoformat(line.at).timestamp()


def empty_trials(num_workers: int, count: int) -> list[float]:
    """Seconds from start to start of `count` empty trials on a Ray of our own; the first is left out."""
    starts: list[float] = []
    with connected("local", cpu_workers=num_workers) as place, tempfile.TemporaryDirectory() as scratch:
        import ray
        import ray.tune

        on_cuda = place.has_gpus
        config = {"workers": num_workers, "gpu": on_cuda, "cpus": place.cpus_per_worker, "storage": f"{scratch}/train"}
        tuned = ray.tune.Tuner(
            ray.tune.with_resources(_empty, {"CPU": 0.1}),
            param_space={**config, "number": ray.tune.grid_search(list(range(count + 2)))},
            tune_config=ray.tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),
            run_config=ray.tune.RunConfig(name="empty", storage_path=scratch, verbose=0),
        ).fit()
        starts = sorted(result.metrics["started_unix_s"] for result in tuned if result.metrics)
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
    """Prints the overhead of each trial, medians by engine, and the empty trials' seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--empty", type=int, default=0, metavar="N", help="also time N empty trials here")
    options = parser.parse_args()
    lines = Tail(options.journal).read()
    header = History(lines).header
    assert header is not None, f"{options.journal} has no first line"
    by_engine: dict[str, list[float]] = {}
    for trial, seconds, is_first in overheads(lines):
        print(f"{trial.trial_id}  {seconds:5.1f} s  {trial.layout.label}{' (first of a session)' if is_first else ''}")
        if not is_first:
            by_engine.setdefault(trial.layout.engine, []).append(seconds)
    print(f"on {header.cluster.label}, commit {header.commit}")
    for engine, seconds in sorted(by_engine.items()):
        spread = f"{min(seconds):.1f} to {max(seconds):.1f}"
        print(f"  {engine:10} median {statistics.median(seconds):.1f} s of {len(seconds)} trials ({spread})")
    if options.empty:
        seconds = empty_trials(header.cluster.num_devices, options.empty)
        spread = f"{min(seconds):.1f} to {max(seconds):.1f}"
        print(f"  {'empty':10} median {statistics.median(seconds):.1f} s of {len(seconds)} trials ({spread})")


if __name__ == "__main__":
    main()
