"""The learning rate of each strategy: as stated, else tried by a small Tune search of short trainings, or by a rule.

The rule: the first strategy's rate, times the square root of the ratio of global batches (arXiv 2205.10287). The search
tries it with its third and its triple, and goes on past the best while that stands at the edge.
"""

import contextlib
import dataclasses
import io
import json
import logging
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.cluster.nodes import Place
from platform.common.errors import ClusterError
from platform.common.text import figure
from platform.converging.strategies import Strategy
from platform.study.replace import replacing
from platform.training.folder import TrainingFolder
from trainers.values.codec import to_json
from trainers.values.training import Plan, TrainingJob

_APART = 3.0
"""Between neighbouring rates."""
LEAST_STEPS = 30
"""Optimizer steps of a short training, below which its loss says nothing of a rate."""
_SHARE = 0.2
"""Of the tokens that a short training takes, where that is enough steps."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """A learning rate, and where it is from."""

    value: float
    source: str
    """A sentence's part, such as "the best of 3 rates in 40 steps each"."""


def by_rule(first: Strategy, strategy: Strategy) -> float:
    """The first strategy's rate at the strategy's global batch."""
    return first.recipe.learning_rate * math.sqrt(strategy.recipe.global_batch / first.recipe.global_batch)


def short_tokens(strategy: Strategy, tokens: int) -> int | None:
    """Tokens of a short training; None where the whole one has not the steps that tell rates apart."""
    least = LEAST_STEPS * strategy.recipe.tokens_per_step
    return None if least > tokens else max(least, round(tokens * _SHARE))


def searched(rule: float, most: int, losses_of: Callable[[Sequence[float]], Sequence[float]]) -> tuple[float, int]:
    """The best of at most `most` rates around the rule's, and how many were tried. `losses_of` tries some.

    A best rate at the edge has the next one tried as well. Where no rate learns, the rule's stays.
    """
    factors = (1.0, 1 / _APART, _APART)[: max(1, most)]
    tried = dict(zip((rule * each for each in factors), losses_of([rule * each for each in factors]), strict=True))
    while len(tried) < most:
        best = min(tried, key=lambda rate: tried[rate])
        further = {min(tried): best / _APART, max(tried): best * _APART}.get(best)
        if further is None or not math.isfinite(tried[best]):
            break
        tried[further] = losses_of([further])[0]
    best = min(tried, key=lambda rate: tried[rate])
    return (best if math.isfinite(tried[best]) else rule), len(tried)


class Rates:
    """The rates of a comparison; what was found is written down, so that the same command does not search again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = json.loads(path.read_bytes()) if path.exists() else {}

    def known(self, strategy: Strategy) -> Rate | None:
        """The strategy's own rate, else what was decided for strategies with its mathematics."""
        if strategy.has_own_rate:
            return Rate(value=strategy.recipe.learning_rate, source="as stated")
        found = self._known.get(strategy.mathematics.id)
        return None if found is None else Rate(**found)

    def decide(self, strategy: Strategy, rate: Rate) -> None:
        """Writes the decision down."""
        self._known[strategy.mathematics.id] = dataclasses.asdict(rate)
        with replacing(self._path, durably=True) as part:
            part.write_text(json.dumps(self._known, indent=1) + "\n")


def rate_of(
    first: Strategy,
    strategy: Strategy,
    *,
    tokens: int,
    most: int,
    losses_of: Callable[[Sequence[float]], Sequence[float]],
) -> Rate:
    """The strategy's rate: searched, or by the rule where that was asked for or the budget is short."""
    rule = by_rule(first, strategy)
    same = strategy.recipe.global_batch == first.recipe.global_batch
    words = "the first's" if same else f"the first's times {figure(rule / first.recipe.learning_rate)}, by the rule"
    if not most:
        return Rate(value=rule, source=f"{words} (--rates 0 tries none)")
    if short_tokens(strategy, tokens) is None:
        steps = tokens // strategy.recipe.tokens_per_step
        return Rate(value=rule, source=f"{words}: {steps} steps are too few to try rates")
    best, number = searched(rule, most, losses_of)
    steps = -(-(short_tokens(strategy, tokens) or 0) // strategy.recipe.tokens_per_step)
    return Rate(value=best, source=f"the best of {number} in {steps} steps each")


def try_rates(place: Place, plans: Mapping[float, Plan], folder: Path) -> list[float]:
    """The last held-out loss of each plan, as trials of Ray Tune one after another; infinity where one failed.

    Raises:
        ClusterError: no trial came back.
    """
    import ray.tune

    from trainers.training.rate_trial import run_rate

    jobs = _jobs(place, plans, folder)
    for name in ("ray.tune", "ray.train"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    nodes = [node.id for node in place.nodes] if place.left_out else []
    storage = folder / "tune"
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(run_rate, {"CPU": 0, f"node:{place.driver_ip}": 0.001}),
        param_space={
            "index": ray.tune.grid_search(list(range(len(jobs)))),
            "jobs": jobs,
            "storage": str(storage),
            "nodes": nodes,
        },
        tune_config=ray.tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),
        run_config=ray.tune.RunConfig(name="rates", storage_path=str(storage), verbose=0),
    )
    with contextlib.redirect_stdout(io.StringIO()):
        found = tuner.fit()
    losses = {
        each.metrics["index"]: each.metrics["val_loss"] for each in found if each.metrics and "index" in each.metrics
    }
    if not losses:
        why = next((str(each.error) for each in found if each.error), "without a word")
        raise ClusterError(f"no learning rate could be tried: {why}")
    shutil.rmtree(storage, ignore_errors=True)
    return [losses.get(index, math.inf) for index in range(len(jobs))]


def _jobs(place: Place, plans: Mapping[float, Plan], folder: Path) -> list[Any]:
    """The job of each plan as JSON, each with an empty folder of its own."""
    jobs: list[Any] = []
    for rate, plan in plans.items():
        path = folder / f"rate-{rate:.3g}"
        shutil.rmtree(path, ignore_errors=True)  # what an ended command left
        path.mkdir(parents=True)
        made = TrainingFolder(path)
        job = TrainingJob(
            plan=plan,
            folder=str(path),
            attempt=made.next_attempt(),
            layout=plan.phases[0].layout,
            cluster=place.cluster,
            cpus_per_worker=place.cpus_per_worker,
            keep=1,
        )
        jobs.append(to_json(job))
    return jobs
