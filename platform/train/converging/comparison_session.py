"""A comparison, from its options to the answer: learning rates, trainings seed by seed, then the conclusion."""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from platform.cluster.connection import connected
from platform.cluster.leftovers import end_abandoned_sessions
from platform.cluster.nodes import ClusterHandle
from platform.common.errors import InputError
from platform.common.output import print_line
from platform.study.atomic_write import replacing
from platform.study.folder import make_folder
from platform.train.attempts import check_layouts
from platform.train.converging.conclusion import conclude
from platform.train.converging.converge_options import ConvergeOptions
from platform.train.converging.rates import Rate, Rates, rate_of, short_tokens, try_rates
from platform.train.converging.strategies import Strategy, check_same_data, folder_of, read_strategies
from platform.train.initial_model import weights_identity
from platform.train.target import Target
from platform.train.train_options import TrainOptions
from platform.train.training_plan import make_plan
from platform.train.training_session import opened, train_on
from trainers.records.training import TrainingPlan
from trainers.records.trust import admit
from trainers.spec.codec import identity, to_json

RATES, LAYOUT = "rates.json", "layout.json"


def converge(options: ConvergeOptions) -> int:
    """Trains and compares the strategies; returns the exit code.

    Raises:
        InputError: the user made a mistake; raised before any device is used.
        ClusterError: the cluster is at fault.
    """
    strategies = read_strategies(options)
    session = ComparisonSession(options, strategies, folder_of(options))
    session.check()
    with session.on_a_cluster():
        rates = {strategy.name: session.rate(strategy) for strategy in strategies}
        if code := session.train(rates):
            return code
    conclude(
        session.out,
        strategies,
        rates,
        tokens=session.tokens,
        seeds=options.seeds,
        comparison_id=session.comparison_id,
        studies=options.studies,
        as_object=options.json,
        form=options.pictures,
    )
    return 0


class ComparisonSession:
    """The trainings of one call of the command."""

    def __init__(self, options: ConvergeOptions, strategies: Sequence[Strategy], out: Path) -> None:
        self._options, self._strategies, self.out = options, strategies, out
        self.tokens = options.steps * strategies[0].recipe.tokens_per_step
        self.comparison_id = identity(str(out))
        """Id that marks the comparison's runs in MLflow."""
        self._clusters = contextlib.ExitStack()
        self._handle: ClusterHandle | None = None

    def check(self) -> None:
        """Checks that every strategy can be trained, and creates the folder.

        Raises:
            InputError: a strategy cannot be trained, or the folder cannot be created.
        """
        for path in (self.out, *(self.out / strategy.folder for strategy in self._strategies)):
            admit(path, (RATES, LAYOUT), trusted=self._options.trust)
        plans: dict[str, TrainingPlan] = {}
        for strategy in self._strategies:
            if strategy.recipe.adapter_rank and self._options.start_from is None:
                raise InputError(
                    f"{strategy.name} trains adapters beside a model that does not train, which would know nothing:"
                    " give its folder by --start-from"
                )
            plans[strategy.name] = self._plan(strategy, strategy.recipe.learning_rate, self.tokens)
            if strategy.recipe.tokens_per_step > self.tokens:
                raise InputError(
                    f"{strategy.name} takes {strategy.recipe.tokens_per_step:,} tokens a step, the whole comparison has"
                    f" {self.tokens:,}: give more --steps"
                )
        check_same_data(plans)
        make_folder(self.out)
        self._rates.save()

    @contextlib.contextmanager
    def on_a_cluster(self) -> Generator[None]:
        """Provides the cluster to `rate` and `train`, which connect to it on their first training."""
        with self._clusters:
            yield
        if self._handle is None:
            end_abandoned_sessions()  # of a driver killed just before its end: no Ray of this command does

    @functools.cached_property
    def _rates(self) -> Rates:
        start = self._options.start_from
        return Rates(self.out / RATES, "" if start is None else weights_identity(start))

    def _connected(self) -> ClusterHandle:
        if self._handle is None:
            largest = max(strategy.layout.world_size for strategy in self._strategies)
            self._handle = self._clusters.enter_context(connected(self._options.address, cpu_workers=largest))
            for strategy in self._strategies:
                check_layouts(self._plan(strategy, strategy.recipe.learning_rate, self.tokens), self._handle.cluster)
        return self._handle

    def rate(self, strategy: Strategy) -> Rate:
        """Returns the strategy's learning rate: the saved one, else by short trainings or by the rule."""
        if (decided := self._rates.lookup(strategy)) is not None:
            return decided

        def losses_of(rates: Sequence[float]) -> list[float]:
            short = short_tokens(strategy, self.tokens)
            assert short is not None
            plans = {rate: self._plan(strategy, rate, short) for rate in rates}
            return try_rates(self._connected(), plans, self.out / "rates" / strategy.folder)

        first, limit = self._strategies[0], self._options.rates
        rate = rate_of(first, strategy, tokens=self.tokens, limit=limit, losses_of=losses_of)
        self._rates.decide(strategy, rate)
        print_line(f"{strategy.name}: learning rate {rate.value:.3g}, {rate.source}.")
        return rate

    def train(self, rates: dict[str, Rate]) -> int:
        """Trains every strategy with one seed, then with the next, skipping complete trainings; returns the exit
        code.
        """
        complete = 0
        for seed in range(self._options.seeds):
            for strategy in self._strategies:
                with opened(self._train_options(strategy, rates[strategy.name].value, seed)) as training:
                    complete += 1
                    if training.is_complete:
                        continue
                    name = f"{strategy.name}, seed {seed}"
                    print_line(f"{name}:")
                    tags = {"comparison": self.comparison_id, "strategy": strategy.name}
                    if code := train_on(self._connected(), training, name=name, tags=tags):
                        print_line(self._leader_sentence(complete - 1))
                        return code
        return 0

    def _leader_sentence(self, complete: int) -> str:
        """Returns the last sentence of an interrupted comparison: the number of complete trainings and how to go on."""
        num_strategies = len(self._strategies)
        num_trainings = num_strategies * self._options.seeds
        sentence = f"{complete} of {num_trainings} trainings are complete: the same command resumes the rest"
        return (
            f"{sentence}, with --seeds {complete // num_strategies} it answers by these."
            if complete >= num_strategies
            else f"{sentence}."
        )

    def _train_options(self, strategy: Strategy, rate: float, seed: int) -> TrainOptions:
        folder = self.out / strategy.folder
        file = folder / LAYOUT
        make_folder(folder)
        parts = {"recipe": strategy.recipe, "layout": strategy.layout, "batch": strategy.batch}
        with replacing(file) as part:
            part.write_text(json.dumps({name: to_json(value) for name, value in parts.items()}, indent=2) + "\n")
        options = self._common(str(file), rate, self.tokens)
        return dataclasses.replace(options, out=folder / f"seed-{seed}", seed=seed)

    def _plan(self, strategy: Strategy, rate: float, tokens: int) -> TrainingPlan:
        """Returns the checked plan of a training with seed 0.

        Raises:
            InputError: the strategy cannot be trained.
        """
        target = Target(
            name=strategy.name,
            folder=self.out,
            layout=strategy.layout,
            recipe=strategy.recipe,
            batch=strategy.batch,
        )
        return make_plan(self._common(strategy.name, rate, tokens), target, None)

    def _common(self, target: str, rate: float, tokens: int) -> TrainOptions:
        """Returns the options that all trainings share, such as data, schedule and held-out loss."""
        options = self._options
        unset: dict[str, Any] = dict.fromkeys(
            ("data_order", "recipe", "warmup_tokens", "decay_tokens", "final_share", "val_every", "val_data",
             "checkpoint_steps")
        )  # fmt: skip
        return TrainOptions(
            target=target,
            studies=options.studies,
            tokens=tokens,
            out=self.out,
            data=options.data,
            start_from=options.start_from,
            learning_rate=rate,
            lr_schedule="cosine",
            val_tokens=options.val_tokens,
            phases=(),
            seed=0,
            checkpoint_s=600.0,
            keep=1,
            address=options.address,
            trust=options.trust,
            json=False,
            **unset,
        )
