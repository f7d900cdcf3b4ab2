# pyright: reportPrivateUsage=false
"""Counts the rungs of recorded searches that ended in an out-of-memory error, and those that a search leaves out today.

    python -m benchmarks.crashed_rungs studies/NAME/journal.jsonl [...]

The journals' trials are played to the guided searcher in their order. Left out is what it holds back or has ruled out
when the trial begins, and what the trial's own rungs say does not fit. This is derived: nothing is run, and what would
have run in its place is not known.
"""

import argparse
import dataclasses
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from platform.cost_model.ordering import known_columns
from platform.search.loop.jobs import memory_points, predicted_gib
from platform.searchers.guided import Guided
from platform.searchers.problem import Problem, TrialCosts
from platform.study.history import History
from platform.study.journal import Tail
from search_spaces.candidate import Candidate
from trainers.measuring.ladder import predict_gib, with_headroom_gib
from trainers.records.measurement import Measurement, Outcome

RAN = (Outcome.OK, Outcome.SLOW, Outcome.THRASH, Outcome.OOM)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each journal, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journals", nargs="+", type=Path)
    total, left_out_total = Counter[str](), Counter[str]()
    for path in parser.parse_args(argv).journals:
        history = History(Tail(path).read(last=True))
        run_counts, left_out = rung_counts(history)
        assert history.header is not None
        print(f"{path} ({history.header.cluster.label}, {history.header.searcher}): {_summary(run_counts, left_out)}")
        total.update(run_counts)
        left_out_total.update(left_out)
    print(f"all: {_summary(total, left_out_total)}")
    return 0


def rung_counts(history: History) -> tuple[Counter[str], Counter[str]]:
    """Returns the rungs of the search by outcome: all that were run, and those that are left out today."""
    assert history.header is not None
    rungs: defaultdict[str, list[Measurement]] = defaultdict(list)
    for measurement in history.measurements:
        if not measurement.repeat and measurement.outcome in RAN:
            rungs[measurement.trial_id].append(measurement)
    layouts: defaultdict[tuple[object, object], set[int]] = defaultdict(set)
    for climbed in rungs.values():
        layouts[climbed[0].recipe, climbed[0].layout] |= {run.batch.micro_batch for run in climbed}
    candidates = {
        (recipe, layout): Candidate(recipe=recipe, layout=layout, micro_batches=tuple(sorted(micro_batches)))  # type: ignore[reportArgumentType]
        for (recipe, layout), micro_batches in layouts.items()
    }
    cluster, cap_gib = history.header.cluster, history.header.cap_gib
    within = tuple(candidates.values())
    problem = Problem(
        candidates=within,
        columns=known_columns(within, cluster, cap_gib),
        costs=TrialCosts(num_devices=cluster.num_devices),
    )
    searcher, run_counts, left_out = Guided(problem), Counter[str](), Counter[str]()
    for trial in sorted(rungs):
        climbed = rungs[trial]
        candidate = candidates[climbed[0].recipe, climbed[0].layout]
        first, ladder = int(searcher._first[searcher._place[candidate.key]]), candidate.micro_batches
        dropped = {rung for place, rung in enumerate(ladder, start=first) if not searcher._alive[place]}
        dropped |= {*searcher.deferred(candidate), *_by_its_own(candidate, climbed, history)}
        for measurement in climbed:
            run_counts[measurement.outcome] += 1
            left_out[measurement.outcome] += measurement.batch.micro_batch in dropped
        climbed_sizes = tuple(sorted(run.batch.micro_batch for run in climbed))
        searcher.update(dataclasses.replace(candidate, micro_batches=climbed_sizes), climbed)
    return run_counts, left_out


def _by_its_own(candidate: Candidate, measured: Sequence[Measurement], history: History) -> set[int]:
    """Returns the rungs that those below them in the trial place above the head-room."""
    assert history.header is not None
    cluster, cap_gib = history.header.cluster, history.header.cap_gib
    ladder = dataclasses.replace(candidate, micro_batches=tuple(run.batch.micro_batch for run in measured))
    predicted = predicted_gib(ladder, cluster, cap_gib)
    limit_gib = with_headroom_gib(min(cluster.device_memory_gib, cap_gib or math.inf), 0.0)
    too_large: set[int] = set()
    for place, measurement in enumerate(measured):
        needs_gib = predict_gib(memory_points(measured[:place]), measurement.batch.micro_batch, predicted)
        if needs_gib is not None and needs_gib > limit_gib:
            too_large.add(measurement.batch.micro_batch)
    return too_large


def _summary(run_counts: Counter[str], left_out: Counter[str]) -> str:
    others = ", ".join(f"{num} {outcome}" for outcome, num in left_out.items() if num and outcome != Outcome.OOM)
    crashed = run_counts[Outcome.OOM] - left_out[Outcome.OOM]
    return (
        f"{run_counts[Outcome.OOM]} of {run_counts.total()} rungs ran out of memory; left out today (derived)"
        f" {left_out[Outcome.OOM]} of these and {others or 'no other'}: {crashed} of"
        f" {run_counts.total() - left_out.total()} are left"
    )


if __name__ == "__main__":
    sys.exit(main())
