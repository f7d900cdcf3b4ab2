"""A comparison from its options to the answer: rates, trainings seed by seed, verdict, picture, MLflow."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from platform.cluster.connection import connected
from platform.cluster.nodes import Place
from platform.common.errors import InputError
from platform.common.say import say
from platform.common.text import count
from platform.converging.curves import Curves, read_curves
from platform.converging.mlflow_runs import Comparison, log_comparison
from platform.converging.options import ConvergeOptions
from platform.converging.picture import draw
from platform.converging.rates import Rate, Rates, rate_of, short_tokens, try_rates
from platform.converging.strategies import Strategy, read_strategies
from platform.converging.verdict import Verdict, best_by_time, compare, sentences
from platform.study.replace import replacing
from platform.training.options import TrainOptions
from platform.training.plan import make_plan
from platform.training.run import check_layouts
from platform.training.session import opened, train_on
from platform.training.target import Target
from trainers.values.codec import identity, to_json
from trainers.values.training import Plan

RESULT, PICTURE = "convergence.json", "convergence.png"


def converge(options: ConvergeOptions) -> int:
    """Trains and compares; the exit code.

    Raises:
        InputError: a mistake of the user's, before any device is touched.
        ClusterError: the cluster is at fault.
    """
    strategies = read_strategies(options)
    tokens = options.steps * strategies[0].recipe.tokens_per_step
    plans = [_plan(options, each, each.recipe.learning_rate, tokens) for each in strategies]  # refuses what cannot be
    for each in strategies:
        if each.recipe.tokens_per_step > tokens:
            raise InputError(
                f"{each.name} takes {each.recipe.tokens_per_step:,} tokens a step, the whole comparison has {tokens:,}:"
                " give more --steps"
            )
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {options.out} cannot be made: {error.strerror}") from error
    rates = Rates(options.out / "rates.json")
    with contextlib.ExitStack() as stack:
        most = max(each.layout.world_size for each in strategies)
        place: Place | None = None

        def connect() -> Place:
            nonlocal place
            if place is None:
                place = stack.enter_context(connected(options.address, cpu_workers=most))
                for plan in plans:
                    check_layouts(plan, place.cluster)
            return place

        for each in strategies:
            _decide(options, strategies[0], each, tokens, rates, connect)
        code = _train_all(options, strategies, tokens, rates, connect)
    if code:
        return code
    _conclude(options, strategies, tokens, rates)
    return 0


def _decide(
    options: ConvergeOptions,
    first: Strategy,
    strategy: Strategy,
    tokens: int,
    rates: Rates,
    connect: Callable[[], Place],
) -> None:
    if rates.known(strategy) is not None:
        return

    def losses_of(tried: Sequence[float]) -> list[float]:
        short = short_tokens(strategy, tokens)
        assert short is not None
        plans = {rate: _plan(options, strategy, rate, short) for rate in tried}
        return try_rates(connect(), plans, options.out / "rates" / strategy.folder)

    rate = rate_of(first, strategy, tokens=tokens, most=options.rates, losses_of=losses_of)
    rates.decide(strategy, rate)
    say(f"{strategy.name}: learning rate {rate.value:.3g}, {rate.source}.")


def _train_all(
    options: ConvergeOptions, strategies: Sequence[Strategy], tokens: int, rates: Rates, connect: Callable[[], Place]
) -> int:
    """Every strategy with one seed, then with the next: what is ended early compares all the same."""
    for seed in range(options.seeds):
        for each in strategies:
            rate = rates.known(each)
            assert rate is not None
            train_options = _train_options(options, each, rate.value, tokens, seed)
            with opened(train_options) as training:
                if training.is_complete:
                    continue
                say(f"{each.name}, seed {seed}:")
                tags = {"comparison": comparison_id(options), "strategy": each.name}
                if code := train_on(connect(), training, name=f"{each.name}, seed {seed}", tags=tags):
                    return code
    return 0


def comparison_id(options: ConvergeOptions) -> str:
    """What the comparison's runs in MLflow are found by."""
    return identity(str(options.out))


def _train_options(options: ConvergeOptions, strategy: Strategy, rate: float, tokens: int, seed: int) -> TrainOptions:
    folder = options.out / strategy.folder
    file = folder / "layout.json"
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"recipe": strategy.recipe, "layout": strategy.layout, "batch": strategy.batch}
    with replacing(file) as part:
        part.write_text(json.dumps({name: to_json(value) for name, value in parts.items()}, indent=2) + "\n")
    return TrainOptions(
        target=str(file),
        out=folder / f"seed-{seed}",
        seed=seed,
        learning_rate=rate,
        tokens=tokens,
        keep=1,
        **_common(options),
    )


def _common(options: ConvergeOptions) -> dict[str, Any]:
    """What all trainings share: data, schedule, held-out loss."""
    return {
        "studies": options.studies, "data": options.data, "data_order": None, "recipe": None, "lr_schedule": "cosine",
        "warmup_tokens": None, "decay_tokens": None, "final_share": None, "val_tokens": options.val_tokens,
        "val_every": None, "val_data": None, "phases": (), "start_from": None, "checkpoint_s": 600.0,
        "checkpoint_steps": None, "address": options.address, "json": False,
    }  # fmt: skip


def _plan(options: ConvergeOptions, strategy: Strategy, rate: float, tokens: int) -> Plan:
    """The plan of a training, checked without a device.

    Raises:
        InputError: it cannot be trained so.
    """
    target = Target(
        name=strategy.name,
        folder=options.out,
        layout=strategy.layout,
        recipe=strategy.recipe,
        batch=strategy.batch,
    )
    given = TrainOptions(
        target=strategy.name, out=options.out, seed=0, learning_rate=rate, tokens=tokens, keep=1, **_common(options)
    )
    return make_plan(given, target, None)


def _conclude(options: ConvergeOptions, strategies: Sequence[Strategy], tokens: int, rates: Rates) -> None:
    trainings: dict[str, dict[int, Curves]] = {
        each.name: {seed: read_curves(options.out / each.folder / f"seed-{seed}") for seed in range(options.seeds)}
        for each in strategies
    }
    verdict = compare(trainings, tokens)
    lines = sentences(verdict)
    best = best_by_time(verdict)
    if best is not None and verdict.target_loss is not None:
        lines.insert(0, f"Soonest at loss {verdict.target_loss:.3f}: {best}.")
    decided = {each.name: rate for each in strategies if (rate := rates.known(each)) is not None}
    lines += [f"{name}: learning rate {rate.value:.3g}, {rate.source}." for name, rate in decided.items()]
    title = f"{strategies[0].recipe.model.name}, {count(tokens)} tokens, {options.seeds} seeds"
    picture = draw(trainings, options.out / PICTURE, title=title)
    result = _as_object(verdict, decided, lines)
    with replacing(options.out / RESULT) as part:
        part.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    compared = Comparison(
        id=comparison_id(options),
        name=options.out.name,
        model=strategies[0].recipe.model.name,
        target_loss=verdict.target_loss,
        lines=tuple(lines),
        files=(picture, options.out / RESULT),
    )
    look = log_comparison(compared, verdict, options.studies)
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        print(*lines, "Files:", f"  {picture}", f"  {options.out / RESULT}", sep="\n")
    say(look)


def _as_object(verdict: Verdict, rates: dict[str, Rate], lines: Sequence[str]) -> dict[str, Any]:
    return {
        "target_loss": verdict.target_loss,
        "equal_tokens": verdict.equal_tokens,
        "equal_hours": verdict.equal_hours,
        "strategies": {
            name: {
                "learning_rate": rates[name].value,
                "learning_rate_source": rates[name].source,
                "spread": verdict.spread(name),
                "seeds": {str(seed): dataclasses.asdict(each) for seed, each in of.items()},
            }
            for name, of in verdict.marks.items()
        },
        "left_out": dict(verdict.left_out),
        "answer": list(lines),
    }
