"""Measures how many trials the guided search takes before it ends itself, and how far from the best it ends. Run

python -m benchmarks.guided_stop SPACE [--cluster 1xH100] [--seeds 8] [--errors 0.5,1,2] [--set AXIS=VALUE]

Nothing is run: a seed's truth is the cost model's prediction with errors of times and peaks drawn from the priors that
the search assumes, times each of `--errors`, and each measurement has an error of `MEASURED`. Printed are the trials,
the trial that found what the search ended with, the device time of all, and the loss: how much slower that is than the
fastest point that fits.
"""

import argparse
import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np

import search_spaces
from platform.cost_model.columns import Array
from platform.cost_model.hardware import ClusterSpec, find_cluster
from platform.cost_model.regression import LENGTH, TIME, Prior, learn
from platform.search.setup.planning import TRIAL_S, make_plan
from platform.searchers.guidance.fitting import MEMORY
from platform.searchers.guidance.points import PointArrays, make_points
from platform.searchers.guided import Guided
from platform.searchers.problem import Problem, TrialCosts
from search_spaces.candidate import Candidate
from search_spaces.space import Space
from trainers.records.job import Timing
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster

MEASURED = 0.003
"""Log deviation of a measured step time."""
FREQUENCIES = 256
"""Number of waves of which a smooth error is made."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """One search to its own end."""

    trials: int
    found_at: int
    device_h: float
    loss: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each size of the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("space")
    parser.add_argument("--cluster", default="1xH100")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--errors", default="0.5,1,2")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="AXIS=VALUE")
    options = parser.parse_args(arguments)
    space = search_spaces.load(options.space).with_changes(options.changes)
    problem = problem_of(space, find_cluster(options.cluster))
    points = make_points(problem)
    print(f"{len(problem.candidates):,} layouts, {len(points):,} points")
    print(f"{'errors':>8}{'trials':>22}{'found at':>10}{'device h':>10}{'loss, %: median':>17}{'mean':>7}{'worst':>7}")
    for scale in map(float, options.errors.split(",")):
        ended = [search(problem, points, np.random.default_rng(seed), scale) for seed in range(options.seeds)]
        losses = [100 * end.loss for end in ended]
        trials = sorted(end.trials for end in ended)
        print(
            f"{scale:8g}{f'{statistics.median(trials):g} ({trials[0]} to {trials[-1]})':>22}"
            f"{statistics.median(end.found_at for end in ended):10g}"
            f"{statistics.fmean(end.device_h for end in ended):10.2f}"
            f"{statistics.median(losses):17.2f}{statistics.fmean(losses):7.2f}{max(losses):7.2f}",
            flush=True,
        )


def problem_of(space: Space, spec: ClusterSpec) -> Problem[Candidate]:
    """Returns what a search of the space on that cluster would solve."""
    cluster = Cluster(
        device_kind="cuda",
        device=spec.device.name,
        device_memory_gib=spec.device.memory_gib,
        num_nodes=spec.num_nodes,
        devices_per_node=spec.devices_per_node,
        capability=(9, 0),
    )
    space = space.with_shared_batch((cluster.num_devices,))
    plan = make_plan(*space.candidates(cluster.num_devices), cluster, space.device_memory_gib)
    costs = TrialCosts(num_devices=cluster.num_devices, start_s=TRIAL_S["cuda"], rung_s=1.5 * Timing().rung_s)
    return Problem(candidates=plan.candidates, columns=plan.columns, costs=costs, tokens=space.tokens)


def search(problem: Problem[Candidate], points: PointArrays, generator: np.random.Generator, scale: float) -> Ended:
    """Returns the end of a search of one drawn truth."""
    log_step_s = points.log_step_s + drawn(points, TIME, generator, scale)
    excess = drawn(points, MEMORY, generator, scale)
    runs = points.log_needed + excess < 0
    best_s = float(np.exp(log_step_s[runs].min()))
    owners = {candidate.key: place for place, candidate in enumerate(problem.candidates)}
    first = np.searchsorted(points.owner, np.arange(len(problem.candidates)))
    searcher, trials, device_s, found_at, fastest_s = Guided(problem), 0, 0.0, 0, math.inf
    while (suggested := searcher.suggest()) is not None:
        trials += 1
        device_s += problem.costs.num_devices * problem.costs.start_s
        owner = owners[suggested.key]
        ladder = problem.candidates[owner].micro_batches
        results: list[Measurement] = []
        for rung in suggested.micro_batches:
            point = int(first[owner]) + ladder.index(rung)
            batch = BatchPoint.of(suggested.recipe, suggested.layout, rung)
            step_s = math.exp(log_step_s[point])
            on = Measurement(recipe=suggested.recipe, layout=suggested.layout, batch=batch, outcome=Outcome.OOM)
            if not runs[point]:
                results.append(on)
                break
            device_s += problem.costs.num_devices * problem.costs.rung_s
            measured_s = step_s * math.exp(MEASURED * generator.standard_normal())
            peak_gib = math.exp(points.log_allocated_gib[point] + excess[point])
            results.append(
                dataclasses.replace(
                    on,
                    outcome=Outcome.OK,
                    tokens_per_s=suggested.tokens_per_step / measured_s,
                    peak_allocated_gib=peak_gib,
                )
            )
            if step_s < fastest_s:
                found_at, fastest_s = trials, step_s
        searcher.update(suggested, results)
    return Ended(trials=trials, found_at=found_at, device_h=device_s / 3600, loss=fastest_s / best_s - 1)


def drawn(points: PointArrays, prior: Prior, generator: np.random.Generator, scale: float) -> Array:
    """Returns an error of each point in log space, drawn from `prior` and multiplied by `scale`."""
    everything = np.arange(len(points), dtype=np.int64)
    # Waves of normal frequencies make a Gaussian process with the prior's kernel (Rahimi and Recht, 2007).
    frequencies = generator.standard_normal((points.place.shape[1], FREQUENCIES)) / LENGTH
    phases = generator.uniform(0, 2 * math.pi, FREQUENCIES)
    weights = generator.standard_normal(FREQUENCIES) * math.sqrt(2 / FREQUENCIES)
    smooth = np.cos(points.place.astype(np.float64) @ frequencies + phases) @ weights
    linear = points.effects.astype(np.float64) @ generator.standard_normal(points.effects.shape[1])
    nothing = learn(points, everything[:0], np.zeros(0), prior)
    by_point = np.sqrt(nothing.noise_variance(everything)) * generator.standard_normal(len(points))
    shared = prior.common * generator.standard_normal()
    return scale * np.asarray(shared + prior.effects * linear + prior.smooth * smooth + by_point, dtype=np.float64)


if __name__ == "__main__":
    main()
