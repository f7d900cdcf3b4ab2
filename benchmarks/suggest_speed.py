"""Measures how long the guided search takes to suggest a trial among 100,000 candidates after 200 measurements. From
the checkout:

python -m benchmarks.suggest_speed
"""

import argparse
import itertools
import math
import os
import time

import search_spaces
from platform.cost_model.ordering import known_columns
from platform.searchers.guided import Guided
from platform.searchers.problem import Problem
from search_spaces.candidate import Candidate
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout

CLUSTER = Cluster(
    device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=8, capability=(9, 0)
)
NUM_CANDIDATES, NUM_MEASUREMENTS = 100_000, 200


def candidates() -> list[Candidate]:
    """Returns layouts of GPT-2 XL on eight devices that differ in kernels, checkpointing, stages and buckets."""
    recipe = search_spaces.load("gpt2_xl").recipe
    kinds = list(
        itertools.product(("none", "full"), ("eager", "sdpa"), ("plain", "chunked"), ("none", "block"), (2, 3))
    )
    buckets = itertools.count()
    points: list[Candidate] = []
    while len(points) < NUM_CANDIDATES:
        bucket = next(buckets)
        for checkpointing, attention, loss, compiled, stage in kinds:
            layout = Layout(
                engine="fsdp",
                zero_stage=stage,
                dp_shard=8,
                checkpointing=checkpointing,  # type: ignore[reportArgumentType]
                attention=attention,  # type: ignore[reportArgumentType]
                loss=loss,  # type: ignore[reportArgumentType]
                compile=compiled,  # type: ignore[reportArgumentType]
                bucket_mib=bucket,
            )
            points.append(Candidate(recipe=recipe, layout=layout, micro_batches=(4,)))
    return points[:NUM_CANDIDATES]


def main() -> None:
    """Prints the slowest and the median suggestion, and what the making and an update take."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    many = candidates()
    began_s = time.perf_counter()
    columns = known_columns(many, CLUSTER, None)
    searcher = Guided(Problem(candidates=many, columns=columns, tokens=None))
    made_s = time.perf_counter() - began_s
    suggest_s: list[float] = []
    busy_s: list[float] = []
    update_s: list[float] = []
    defer_s: list[float] = []
    for number in range(NUM_MEASUREMENTS + 20):
        began_s, busy = time.perf_counter(), time.process_time()
        suggested = searcher.suggest()
        suggest_s.append(time.perf_counter() - began_s)
        busy_s.append(time.process_time() - busy)
        assert suggested is not None
        wave = 1e5 * (1.0 + 0.1 * math.sin(number) + 0.1 * (suggested.layout.attention == "sdpa"))
        (batch,) = suggested.batch_points()
        measured = Measurement(
            recipe=suggested.recipe, layout=suggested.layout, batch=batch, outcome=Outcome.OK, tokens_per_s=wave
        )
        began_s = time.perf_counter()
        searcher.update(suggested, [measured])
        update_s.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        searcher.deferred(suggested)
        defer_s.append(time.perf_counter() - began_s)
    last_deferred = sorted(defer_s[NUM_MEASUREMENTS:])
    last, busiest = sorted(suggest_s[NUM_MEASUREMENTS:]), sorted(busy_s[NUM_MEASUREMENTS:])
    print(
        f"{len(many):,} candidates, {NUM_MEASUREMENTS} measurements: suggest takes {last[len(last) // 2]:.3f} s"
        f" in the median of the last {len(last)}, {last[-1]:.3f} s at most ({busiest[len(last) // 2]:.3f} and"
        f" {busiest[-1]:.3f} s of processor time); update {max(update_s):.4f} s at most; deferred"
        f" {last_deferred[len(last_deferred) // 2]:.3f} s in the median, {last_deferred[-1]:.3f} s at most;"
        f" made in {made_s:.1f} s (load {os.getloadavg()[0]:.1f})"
    )


if __name__ == "__main__":
    main()
