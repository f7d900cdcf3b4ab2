"""Plays searches in one lane and in many, on simulated nodes: wall time, device seconds, regret, and the driver's
processor time. From the checkout:

python -m benchmarks.side_by_side

The space is BLOOM 7b1 on nodes of four H200; a point's time is the cost model's, up to 10 % off. Each node has a factor
and each run another one, drawn from the ratios of the points that two studies of docs/measurements share (stalls too).
A trial takes 18 s and 9 s a rung of simulated time. The loop, searcher, journal and confirmation are the search's own;
Ray, the recorder's process and the mirror are not there, so their processor time is not counted.
"""

import argparse
import contextlib
import csv
import dataclasses
import heapq
import itertools
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from benchmarks.large_study import PLACE, Played, subject
from platform.search.loop.budget import Budget
from platform.search.loop.jobs import TrialSettings, planned_figures
from platform.search.loop.lanes import Lanes
from platform.search.loop.loop import SearchLoop
from platform.search.loop.together import Together
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.search.setup.study_setup import StudySetup
from platform.searchers.problem import Problem
from platform.study.result.ranking import winner
from platform.study.study import Study
from search_spaces.candidate import Candidate
from trainers.records.job import Job
from trainers.records.journal import Measured, Peak, RungStart, StudyHeader
from trainers.records.journal_lines import record
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import to_json
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

SHARED = (
    ("gpt2-exhaustive-1xH200", "gpt2-grid-1xH200"),
    ("gpt2-40gib-4xH200", "gpt2-disturbed-4xH200"),
    ("bloom7b-guided-1xH200", "bloom7b-short-1xH200"),
)
"""Pairs of studies of docs/measurements that measured some points both."""
ALIKE = 0.05
"""Largest distance from 1 of a ratio that counts as a node's own factor."""
START_S, RUNG_S = 18.0, 9.0
NODES = 64


def ratios() -> list[float]:
    """Returns how the speeds of the same point in two studies differ."""
    shared_ratios: list[float] = []
    for names in SHARED:
        first, second = (dict(_speeds(Path(f"docs/measurements/{name}.csv"))) for name in names)
        shared_ratios += [first[key] / second[key] for key in sorted(first.keys() & second.keys())]
    return shared_ratios


def _speeds(path: Path) -> Iterator[tuple[tuple[str, ...], float]]:
    with path.open() as lines:
        for row in csv.DictReader(lines):
            if row["outcome"] == "ok" and row["tokens_per_s_per_gpu"]:
                key = (row["recipe"], row["layout_id"], row["micro_batch"])
                yield key, float(row["tokens_per_s_per_gpu"])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A simulated search."""

    num_points: int
    num_trials: int
    search_s: float
    """Simulated seconds until the search's last trial ended."""
    wall_s: float
    """Simulated seconds with the final runs."""
    gpu_s: float
    """Seconds of the devices of all nodes that trials held."""
    num_lagging: int
    """Nodes that were named as lagging."""
    regret: float
    """Share by which the best point's true speed is above that of the winner's."""
    driver_s: float
    """Processor seconds of the loop."""
    slowest_s: float
    """Most processor seconds of one decision or end."""


def play(
    candidates: Sequence[Candidate],
    on: StudySetup,
    *,
    searcher: str,
    num_nodes: int,
    seed: int,
    rules: ConfirmationRules | None,
    max_trials: int | None = None,
    nodes_per_trial: Sequence[int] = (1,),
    spread: float | None = None,
    num_slow: int = 0,
    slow_in: str = "",
) -> Ran:
    """Plays searches on `num_nodes` nodes at a time, each of whose trials takes one of `nodes_per_trial`. Nodes
    are up to `spread` apart; None: as far as two studies of a point. `num_slow` of them are a third slower: in matrix
    products too where `slow_in` is "products", else in the figures of trials alone.
    """
    chance, drawn = random.Random(seed), ratios()
    of_nodes = [ratio for ratio in drawn if abs(ratio - 1) <= ALIKE]
    nodes = {f"id{number}": f"10.0.{number // 250}.{number % 250}" for number in range(num_nodes)}
    factors = {
        node: chance.choice(of_nodes) if spread is None else chance.uniform(1 - spread, 1 + spread) for node in nodes
    }
    for node in list(nodes)[:num_slow]:
        factors[node] *= 2 / 3
    played, clock = Played(on), _Clock()
    gpu_s, nodes_of = 0.0, dict[SearchLoop, int]()
    columns = None if on.plan.columns is None or searcher == "sweep" else on.plan.columns
    driver_s, slowest_s = 0.0, 0.0
    predicted_gib, predicted_speed = planned_figures(on.plan.candidates, on.plan.columns)

    def timed(began_s: float) -> None:
        nonlocal driver_s, slowest_s
        took_s = time.thread_time() - began_s
        driver_s, slowest_s = driver_s + took_s, max(slowest_s, took_s)

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        loops: list[SearchLoop] = []
        for number, num_taken in enumerate(nodes_per_trial):
            study = stack.enter_context(Study.create(folder, f"played-{number}"))
            study.record(
                StudyHeader(
                    name=study.name, space=on.space.name, recipes=on.recipes, cluster=on.cluster,
                    tokens=on.request.tokens, options=to_json(on.request.options), searcher=searcher,
                )
            )  # fmt: skip
            problem = Problem(candidates=candidates, columns=columns, costs=on.problem.costs, tokens=on.request.tokens)
            loops.append(
                SearchLoop(
                    study=study,
                    candidates=candidates,
                    searcher=searchers.create(searcher, problem),
                    budget=Budget(max_trials=max_trials),
                    settings=TrialSettings(
                        cluster=on.cluster,
                        cpus_per_worker=PLACE.cpus_per_worker,
                        recorder="none",
                        commit="0123456",
                        cap_gib=None,
                        timing=on.timing,
                        predicted_gib=predicted_gib,
                        predicted_speed=predicted_speed,
                        rules=rules,
                    ),
                    clock=clock,
                    lanes=Lanes(lambda: nodes, nodes_per_trial=num_taken) if num_nodes > 1 else None,
                )
            )
        nodes_of |= zip(loops, nodes_per_trial, strict=True)
        together, running = Together(loops), list[tuple[float, int, SearchLoop, Job]]()
        numbers, search_s = itertools.count(), 0.0
        while True:
            while True:
                began_s = time.thread_time()
                begun = together.next_job()
                timed(began_s)
                if begun is None:
                    break
                loop, job = begun
                seconds = START_S + RUNG_S * len(job.rungs) + (on.timing.winner_s if job.is_winner_run else 0.0)
                gpu_s += seconds * nodes_of[loop] * on.cluster.num_devices
                heapq.heappush(running, (clock.now_s + seconds, next(numbers), loop, job))
            if not running:
                break
            clock.now_s, _, loop, job = heapq.heappop(running)
            where = job.nodes or ("id0",)
            addresses = tuple(nodes[node] for node in where)
            if job.matmul_peak_tflops is None:
                rates = [680.0 * (1.5 if slow_in == "figures" and node in [*nodes][:num_slow] else 1.0) * factors[node]
                         for node in where]  # fmt: skip
                precision = job.recipe.compute_precision
                record(
                    loop.study.journal,
                    Peak(device="NVIDIA H200", precision=precision, tflops=rates[0], by_device=tuple(rates),
                         nodes=addresses),
                )  # fmt: skip
            for batch in job.rungs:
                record(loop.study.journal, RungStart(trial_id=job.trial_id, batch=batch, deadline_s=60.0))
                measured = played(job.trial_id, job.recipe, job.layout, batch)
                factor = min(factors[node] for node in where) * chance.choice(drawn)
                if measured.tokens_per_s and measured.step_time_s:
                    measured = dataclasses.replace(
                        measured,
                        tokens_per_s=measured.tokens_per_s * factor,
                        step_time_s=measured.step_time_s / factor,
                        repeat=job.repeat,
                        addresses=addresses,
                        step_times_s=(),
                    )
                record(loop.study.journal, Measured(measurement=measured))
                if measured.outcome is not Outcome.OK:
                    break
            if not job.repeat:
                search_s = clock.now_s
            began_s = time.thread_time()
            loop.on_trial_end(job.trial_id, state="done", reason="")
            timed(began_s)

        def speed(recipe: Recipe, layout: Layout, batch: BatchPoint) -> float:
            return played("", recipe, layout, batch).tokens_per_s or 0.0

        fastest = max(speed(each.recipe, each.layout, batch) for each in candidates for batch in each.batch_points())
        best = [winner(list(loop.history.measurements), loop.history.paces) for loop in loops]
        regrets = [1 - speed(run.recipe, run.layout, run.batch) / fastest for run in best if run]
        histories = [loop.history for loop in loops]
        return Ran(
            num_points=sum(m.outcome is not Outcome.SKIPPED for history in histories for m in history.measurements),
            num_trials=sum(len(history.trials) for history in histories),
            search_s=search_s,
            wall_s=clock.now_s,
            gpu_s=gpu_s,
            num_lagging=sum(len(history.lagging) for history in histories),
            regret=sum(regrets) / len(regrets),
            driver_s=driver_s,
            slowest_s=slowest_s,
        )


class _Clock:
    """Simulated time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def in_turn(runs: Sequence[Ran]) -> Ran:
    """Returns searches one after another as one."""
    names = (field.name for field in dataclasses.fields(Ran))
    total: dict[str, Any] = {name: sum(getattr(run, name) for run in runs) for name in names}
    total["regret"], total["slowest_s"] = total["regret"] / len(runs), max(run.slowest_s for run in runs)
    return Ran(**total)


def of_one_rung(candidates: Sequence[Candidate], count: int, seed: int) -> list[Candidate]:
    """Returns `count` candidates of one rung each, drawn from those given."""
    chance = random.Random(seed)
    drawn = chance.sample(list(candidates), count)
    return [
        dataclasses.replace(candidate, micro_batches=(chance.choice(candidate.micro_batches),)) for candidate in drawn
    ]


def main() -> None:
    """Prints a row for each search."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.side_by_side")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--swept", type=int, default=512)
    options = parser.parse_args()
    on = subject()
    everything = on.plan.candidates
    print(
        "what                   lanes  points  trials  search s   wall s   device s  lag  regret %  driver %  most ms"
    )

    def show(title: str, lanes: int, runs: Sequence[Ran]) -> None:
        mean = {
            field.name: sum(getattr(ran, field.name) for ran in runs) / len(runs) for field in dataclasses.fields(Ran)
        }
        share = 100 * mean["driver_s"] / mean["wall_s"]
        print(
            f"{title:21}  {lanes:5}  {mean['num_points']:6.0f}  {mean['num_trials']:6.0f}  {mean['search_s']:8.0f}"
            f"  {mean['wall_s']:7.0f}  {mean['gpu_s']:9.0f}  {mean['num_lagging']:3.1f}"
            f"  {100 * mean['regret']:8.2f}  {share:8.2f}  {1000 * max(ran.slowest_s for ran in runs):7.0f}",
            flush=True,
        )

    for searcher, rules, name in (
        ("sweep", None, f"{options.swept} swept"),
        ("sweep", ConfirmationRules(), f"{options.swept} and final runs"),
    ):
        for lanes in (1, NODES):
            runs = [
                play(of_one_rung(everything, options.swept, seed), on, searcher=searcher, num_nodes=lanes, seed=seed,
                     rules=rules)
                for seed in range(options.seeds)
            ]  # fmt: skip
            show(name, lanes, runs)
    for spread in (0.05, 0.1):
        runs = [
            play(of_one_rung(everything, options.swept, seed), on, searcher="sweep", num_nodes=NODES, seed=seed,
                 rules=ConfirmationRules(), spread=spread)
            for seed in range(options.seeds)
        ]  # fmt: skip
        show(f"nodes {spread:.0%} off", NODES, runs)
    for slow_in in ("products", "figures"):
        runs = [
            play(of_one_rung(everything, options.swept, seed), on, searcher="sweep", num_nodes=NODES, seed=seed,
                 rules=ConfirmationRules(), num_slow=3, slow_in=slow_in)
            for seed in range(options.seeds)
        ]  # fmt: skip
        show(f"3 slow in {slow_in}", NODES, runs)
    counts = (4, 4, 4, 2, 2, 2, 1, 1, 1)  # three recipes, each by 1, 2 and 4 nodes
    for name, num_nodes, parts in (
        ("3 x 4,2,1, one by one", 1, [(count,) for count in counts]),
        ("the same on 4 nodes", 4, [counts]),
        ("the same on 8 nodes", 8, [counts]),
    ):
        runs = [
            in_turn([
                play(of_one_rung(everything, 32, seed), on, searcher="sweep", num_nodes=num_nodes, seed=seed,
                     rules=ConfirmationRules(), nodes_per_trial=part)
                for part in parts
            ])
            for seed in range(options.seeds)
        ]  # fmt: skip
        show(name, num_nodes, runs)
    for name, parts in (("8,4,2,1 nodes in turn", [(8,), (4,), (2,), (1,)]), ("8,4,2,1 nodes at once", [(8, 4, 2, 1)])):
        runs = [
            in_turn([
                play(of_one_rung(everything, 64, seed), on, searcher="sweep", num_nodes=8, seed=seed,
                     rules=ConfirmationRules(), nodes_per_trial=part)
                for part in parts
            ])
            for seed in range(options.seeds)
        ]  # fmt: skip
        show(name, 8, runs)
    for lanes in (1, 8):
        runs = [
            play(everything, on, searcher="guided", num_nodes=lanes, seed=seed, rules=None, max_trials=32)
            for seed in range(options.seeds)
        ]
        show("guided, 32 trials", lanes, runs)
    count, most = 0, list[Candidate]()
    for candidate in everything:
        if count >= options.points:
            break
        most.append(candidate)
        count += len(candidate.micro_batches)
    show(f"{count:,} in ladders", NODES, [play(most, on, searcher="sweep", num_nodes=NODES, seed=0, rules=None)])


if __name__ == "__main__":
    main()
