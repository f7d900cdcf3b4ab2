"""Shows in which order a study's first trial puts the others, beside the measured order. From the checkout:

python -m benchmarks.order_after_first studies/NAME

Predictions have what the first trial's processes measured of links and devices, and then what its steps teach too;
"told nothing" is the catalogue's, which knows no CPUs. The last line counts pairs of layouts of one recipe whose
measured steps differ by more than a fifth.
"""

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from platform.cost_model.columns import Array, Columns
from platform.cost_model.learned_rates import RateFactors, TimedRows, learned_factors
from platform.cost_model.ordering import known_columns
from platform.cost_model.predict import predict
from platform.study.study import read
from search_spaces.candidate import Candidate
from trainers.records.measurement import TIMED, Measurement

APART = 1.2
"""Ratio of two measured steps from which on their order counts."""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table in Markdown; returns 2 where the study has no first trial to learn from."""
    command_parser = argparse.ArgumentParser(prog="python -m benchmarks.order_after_first")
    command_parser.add_argument("study", type=Path, metavar="DIR", help="the study's folder")
    history = read(command_parser.parse_args(argv).study)[0]
    rows = [row for row in history.measurements if row.outcome in TIMED and row.step_time_s and not row.repeat]
    if not rows or history.header is None:
        print("error: the study has no timed step", file=sys.stderr)
        return 2
    candidates = [Candidate(recipe=m.recipe, layout=m.layout, micro_batches=(m.batch.micro_batch,)) for m in rows]
    cluster = history.header.cluster
    columns = known_columns(candidates, cluster, None, history.probe)
    if columns is None:
        print("error: nothing is predicted for these devices", file=sys.stderr)
        return 2
    first = [place for place, row in enumerate(rows) if row.trial_id == rows[0].trial_id]
    factors = learned_factors(_timed(rows, columns, first))
    told_nothing = known_columns(candidates, cluster, None)
    predicted = {
        "told nothing": None if told_nothing is None else predict(told_nothing).step.total_s,
        "links measured": predict(columns).step.total_s,
        "after the first trial": predict(factors.on(columns)).step.total_s,
    }
    _print(rows, factors, {name: values for name, values in predicted.items() if values is not None})
    return 0


def _timed(rows: Sequence[Measurement], columns: Columns, index: list[int]) -> TimedRows:
    micro_s = [rows[place].micro_step_s for place in index]
    return TimedRows(
        columns=columns.take(np.array(index)),
        step_s=np.array([rows[place].step_time_s for place in index]),
        micro_s=np.array([np.nan if seconds is None else seconds for seconds in micro_s]),
    )


def _print(rows: Sequence[Measurement], factors: RateFactors, predicted: Mapping[str, Array]) -> None:
    first = rows[0].layout.label
    print(f"First trial: {first}; factors it teaches beyond the measured links: {factors}\n")
    print(f"| batch | layout | measured s | {' | '.join(f'{name} s' for name in predicted)} |")
    print(f"|{'---|' * (3 + len(predicted))}")
    order = sorted(range(len(rows)), key=lambda place: (rows[place].global_batch, rows[place].step_time_s))
    for place in order:
        row = rows[place]
        seconds = " | ".join(f"{values[place]:.3f}" for values in predicted.values())
        tilde = "~" if row.step_time_derived else ""
        print(f"| {row.global_batch} | {row.layout.label} | {row.step_time_s:.3f}{tilde} | {seconds} |")
    for name, values in predicted.items():
        right, pairs = _pairs(rows, values)
        print(f"\n{name}: {right} of {pairs} pairs in the measured order")


def _pairs(rows: Sequence[Measurement], values: Array) -> tuple[int, int]:
    """Returns (pairs in the measured order, pairs whose steps differ by more than `APART`)."""
    right = pairs = 0
    for a, b in itertools.permutations(range(len(rows)), 2):
        slower, faster = rows[a].step_time_s or 0.0, rows[b].step_time_s or 1.0
        if rows[a].trained_recipe == rows[b].trained_recipe and slower > APART * faster:
            pairs += 1
            right += bool(values[a] > values[b])
    return right, pairs


if __name__ == "__main__":
    sys.exit(main())
