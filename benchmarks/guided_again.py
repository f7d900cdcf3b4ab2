"""Replays the present guided search over times that searches recorded. Run

python -m benchmarks.guided_again JOURNAL [JOURNAL ...] -- SPACE [options of platform.search]

It is asked for trial after trial, and answered from the journals: a point's first figure counts. A point that none has
is answered with what is predicted for it, costs nothing beyond its trial's start, and is counted apart. Device seconds
are those of a figure's windows and warm-up steps, and what a trial's start is taken to cost. Every rung of a trial is
climbed, which a worker leaves off where a larger one cannot win. This is derived: nothing is run.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.cluster.nodes import ClusterHandle
from platform.cost_model.predict import predict
from platform.search.__main__ import parse
from platform.search.setup.planning import TRIAL_S
from platform.search.setup.request import read_request
from platform.search.setup.study_setup import setup_of
from platform.study.history import History
from platform.study.journal import Tail
from platform.study.keys import key_of
from search_spaces.candidate import Candidate
from trainers.records.measurement import ENDS_LADDER, Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster

Key = tuple[str, int]
"""A candidate's key, and a micro-batch of it."""


def main(argv: Sequence[str]) -> int:
    """Prints each trial, and what all of them took beside everything that was recorded."""
    journals = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    journals.add_argument("journals", nargs="+", type=Path, metavar="JOURNAL")
    place = argv.index("--") if "--" in argv else len(argv)
    paths = journals.parse_args(argv[:place]).journals
    if place == len(argv):
        journals.error("a space is wanted after the journals and --")
    cluster, recorded = _recorded(paths)
    request = read_request(parse(argv[place + 1 :]))
    problem = setup_of(request, ClusterHandle(cluster=cluster, cpus_per_worker=1.0, driver_ip=""), None).problem
    assert not problem.earlier, "--learn-from has no place here"
    assert problem.columns is not None, f"the cost model does not know {cluster.label}"
    keys = [(possible.key, rung) for possible in problem.candidates for rung in possible.micro_batches]
    steps_s = dict(zip(keys, predict(problem.columns).step.total_s.tolist(), strict=True))
    searcher = searchers.create("guided", problem)
    start_s = TRIAL_S[cluster.device_kind]
    trials, points, unknown, spent_s = 0, 0, 0, 0.0
    while (candidate := searcher.suggest()) is not None:
        measurements: list[Measurement] = []
        for rung in candidate.micro_batches:
            key = (candidate.key, rung)
            unknown += key not in recorded
            measurements.append(recorded.get(key) or _predicted_measurement(candidate, rung, steps_s[key]))
            spent_s += _device_s(measurements[-1])
            if measurements[-1].outcome in ENDS_LADDER:
                break
        trials, points, spent_s = trials + 1, points + len(measurements), spent_s + start_s * cluster.num_devices
        print(f"{trials:3d}  {candidate.layout.label}: {', '.join(map(_outcome_words, measurements))}")
        searcher.update(candidate, measurements)
    predicted_points = {key: measurement for key, measurement in recorded.items() if key in steps_s}
    layouts = len({key for key, _ in predicted_points})
    whole_s = sum(map(_device_s, predicted_points.values())) + layouts * start_s * cluster.num_devices
    print(f"ended: {searcher.stopped_reason}")
    print(f"{trials} trials, {points} points, of which no journal has {unknown}: {spent_s:.0f} device seconds")
    print(
        f"all that was recorded, a trial a layout: {layouts} trials, {len(predicted_points)} points:"
        f" {whole_s:.0f} device seconds"
    )
    return 0


def _recorded(journals: Sequence[Path]) -> tuple[Cluster, Mapping[Key, Measurement]]:
    recorded: dict[Key, Measurement] = {}
    cluster: Cluster | None = None
    for path in journals:
        history = History(Tail(path).read(last=True))
        assert history.header is not None, f"{path} has no first line"
        cluster = cluster or history.header.cluster
        for measurement in history.measurements:
            if not measurement.repeat and measurement.outcome is not Outcome.SKIPPED:
                recorded.setdefault((key_of(measurement), measurement.batch.micro_batch), measurement)
    assert cluster is not None
    return cluster, recorded


def _predicted_measurement(candidate: Candidate, rung: int, step_s: float) -> Measurement:
    return Measurement(
        recipe=candidate.recipe,
        layout=candidate.layout,
        batch=BatchPoint.of(candidate.recipe, candidate.layout, rung),
        outcome=Outcome.OK,
        tokens_per_s=candidate.tokens_per_step / step_s,
    )


def _device_s(measurement: Measurement) -> float:
    """Returns the device seconds of its windows and warm-up steps, as far as they were recorded."""
    windows_s = sum(measurement.windows_s) * measurement.steps_per_window
    return (windows_s + sum(measurement.step_times_s[: measurement.warmup_steps])) * measurement.num_devices


def _outcome_words(measurement: Measurement) -> str:
    speed = f"{measurement.tokens_per_s:,.0f}" if measurement.tokens_per_s else measurement.outcome.value
    return f"{measurement.batch.micro_batch}: {speed}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
