"""The learning rate of each strategy: given by the user, found by short trainings in Ray Tune, or scaled by a rule.

The rule is the first strategy's rate times the square root of the ratio of global batches (arXiv 2205.10287). The
search tries that rate, a third of it and three times it, and continues past the best rate while it lies at the edge.
"""

import contextlib
import dataclasses
import io
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.cluster.nodes import ClusterHandle
from platform.common.errors import ClusterError, InputError
from platform.common.text import figure
from platform.study.atomic_write import replacing
from platform.train.converging.strategies import Strategy
from platform.train.training_folder import TrainingFolder
from trainers.records.plain_files import read_json
from trainers.records.training import TrainingJob, TrainingPlan
from trainers.spec.codec import from_json, to_json

_RATE_RATIO = 3.0
"""Ratio of neighbouring rates."""
LEAST_STEPS = 30
"""Least optimizer steps of a short training; fewer cannot distinguish rates."""
_SHARE = 0.2
"""Tokens of a short training as a share of the whole training's, if that is enough steps."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    value: float
    source: str
    """Part of a sentence, such as "the best of 3 rates in 40 steps each"."""


def rate_by_rule(first: Strategy, strategy: Strategy) -> float:
    return first.recipe.learning_rate * math.sqrt(strategy.recipe.global_batch / first.recipe.global_batch)


def short_tokens(strategy: Strategy, tokens: int) -> int | None:
    """Returns the tokens of a short training; None if the whole training has fewer steps than `LEAST_STEPS`."""
    least = LEAST_STEPS * strategy.recipe.tokens_per_step
    return None if least > tokens else max(least, round(tokens * _SHARE))


def search_rate(rule: float, limit: int, losses_of: Callable[[Sequence[float]], Sequence[float]]) -> tuple[float, int]:
    """Returns the best of at most `limit` rates around `rule`, and the number of rates tried.

    `losses_of` trains with each rate of a list and returns their losses. If the best rate lies at the edge, the next
    one is tried too. If no rate learns, `rule` is returned.
    """
    factors = (1.0, 1 / _RATE_RATIO, _RATE_RATIO)[: max(1, limit)]
    loss_by_rate = dict(
        zip((rule * factor for factor in factors), losses_of([rule * factor for factor in factors]), strict=True)
    )
    while len(loss_by_rate) < limit:
        best = min(loss_by_rate, key=lambda rate: loss_by_rate[rate])
        further = {min(loss_by_rate): best / _RATE_RATIO, max(loss_by_rate): best * _RATE_RATIO}.get(best)
        if further is None or not math.isfinite(loss_by_rate[best]):
            break
        loss_by_rate[further] = losses_of([further])[0]
    best = min(loss_by_rate, key=lambda rate: loss_by_rate[rate])
    return (best if math.isfinite(loss_by_rate[best]) else rule), len(loss_by_rate)


_START = "start"


class Rates:
    """The rates of a comparison, saved in a file so that a resumed command does not search again."""

    def __init__(self, path: Path, start: str = "") -> None:
        """Reads the file. `start` identifies the weights that all trainings begin with; "" for first weights by seed.

        Raises:
            InputError: the file belongs to trainings that began with other weights.
        """
        self._path = path
        self._stored: dict[str, Any] = read_json(path) if os.path.lexists(path) else {_START: start}
        if self._stored.get(_START, "") != start:
            raise InputError(
                f"the trainings in {path.parent} began with other weights than these: give another --out, or remove it"
            )

    def lookup(self, strategy: Strategy) -> Rate | None:
        """Returns the strategy's own rate, else the saved rate of strategies with its mathematics; None without one."""
        if strategy.has_own_rate:
            return Rate(value=strategy.recipe.learning_rate, source="as stated")
        saved = self._stored.get(strategy.mathematics.id)
        try:
            return None if saved is None else from_json(Rate, saved)
        except ValueError as error:
            raise InputError(f"{self._path} cannot be used ({error}): remove it to search rates anew") from error

    def decide(self, strategy: Strategy, rate: Rate) -> None:
        self._stored[strategy.mathematics.id] = dataclasses.asdict(rate)
        self.save()

    def save(self) -> None:
        with replacing(self._path, durably=True) as part:
            part.write_text(json.dumps(self._stored, indent=1) + "\n")


def rate_of(
    first: Strategy,
    strategy: Strategy,
    *,
    tokens: int,
    limit: int,
    losses_of: Callable[[Sequence[float]], Sequence[float]],
) -> Rate:
    """Returns the strategy's rate: by `search_rate`, or by the rule if `limit` is 0 or the training is too short."""
    rule = rate_by_rule(first, strategy)
    same = strategy.recipe.global_batch == first.recipe.global_batch
    words = (
        "the first's" if same else f"the first's rate times {figure(rule / first.recipe.learning_rate)}, by the rule"
    )
    if not limit:
        return Rate(value=rule, source=f"{words} (--rates 0 tries none)")
    if short_tokens(strategy, tokens) is None:
        steps = tokens // strategy.recipe.tokens_per_step
        return Rate(value=rule, source=f"{words}: no rates are tried in so few steps ({steps})")
    best, number = search_rate(rule, limit, losses_of)
    steps = -(-(short_tokens(strategy, tokens) or 0) // strategy.recipe.tokens_per_step)
    return Rate(value=best, source=f"the best of {number} in {steps} steps each")


def try_rates(handle: ClusterHandle, plans: Mapping[float, TrainingPlan], folder: Path) -> list[float]:
    """Returns the last held-out loss of each plan, run one after another as Ray Tune trials; infinity if one failed.

    Raises:
        ClusterError: every trial failed.
    """
    import ray.tune

    from trainers.training.rate_trial import run_rate

    jobs = _jobs(handle, plans, folder)
    for name in ("ray.tune", "ray.train"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    nodes = [node.id for node in handle.nodes] if handle.left_out else []
    storage = folder / "tune"
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(run_rate, {"CPU": 0, f"node:{handle.driver_ip}": 0.001}),
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
        results = tuner.fit()
    losses = {
        result.metrics["index"]: result.metrics["val_loss"]
        for result in results
        if result.metrics and "index" in result.metrics
    }
    if not losses:
        reason = next((str(result.error) for result in results if result.error), "a trial ended without a message")
        raise ClusterError(f"no learning rate could be tried: {reason}")
    shutil.rmtree(storage, ignore_errors=True)
    return [losses.get(index, math.inf) for index in range(len(jobs))]


def _jobs(handle: ClusterHandle, plans: Mapping[float, TrainingPlan], folder: Path) -> list[Any]:
    """Returns the job of each plan as JSON values, each with its own empty folder."""
    jobs: list[Any] = []
    for rate, plan in plans.items():
        path = folder / f"rate-{rate:.3g}"
        shutil.rmtree(path, ignore_errors=True)  # left by an interrupted command
        path.mkdir(parents=True)
        training_folder = TrainingFolder(path)
        job = TrainingJob(
            plan=plan,
            folder=str(path),
            attempt=training_folder.next_attempt(),
            layout=plan.phases[0].layout,
            cluster=handle.cluster,
            cpus_per_worker=handle.cpus_per_worker,
            keep=1,
        )
        jobs.append(to_json(job))
    return jobs
