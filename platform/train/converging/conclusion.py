"""The results of a comparison of trainings: sentences, picture, figures as JSON, MLflow."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from platform.common.json_form import print_json, with_schema
from platform.common.output import print_line
from platform.common.text import count, plural
from platform.study.atomic_write import replacing
from platform.train.converging.comparison_runs import ComparisonFacts, log_comparison
from platform.train.converging.curves import Curves, read_curves
from platform.train.converging.curves_picture import draw
from platform.train.converging.rates import Rate
from platform.train.converging.strategies import Strategy
from platform.train.converging.verdict import StrategyVerdict, best_by_time, compare, sentences

RESULT, PICTURE = "convergence.json", "convergence"


class StrategyForm(TypedDict):
    """The trainings of one strategy."""

    learning_rate: float
    """The strategy's learning rate."""
    learning_rate_source: str
    """The source of the learning rate."""
    spread: float | None
    """Standard deviation over seeds of the loss at equal tokens; null for a single seed."""
    seeds: dict[str, dict[str, float | None]]
    """Points on the curve of each seed, null beyond its end: `tokens_per_s`, `tokens_to_loss`, `hours_to_loss`,
    `loss_at_equal_tokens`, `loss_at_equal_hours`.
    """


class ConvergenceForm(TypedDict):
    """A comparison of trainings."""

    target_loss: float | None
    """The highest of the trainings' last held-out losses, which all of them reach; null if nothing learned."""
    equal_tokens: float
    """Tokens at which losses are compared."""
    equal_hours: float
    """Hours at which losses are compared."""
    strategies: dict[str, StrategyForm]
    """The trainings by strategy."""
    left_out: dict[str, str]
    """The reason why a strategy is not compared, by its name."""
    answer: list[str]
    """The result in sentences."""


def conclude(
    out: Path,
    strategies: Sequence[Strategy],
    rates: Mapping[str, Rate],
    *,
    tokens: int,
    seeds: int,
    comparison_id: str,
    studies: Path,
    as_object: bool,
    form: str,
) -> None:
    """Compares the trainings in `out`, writes picture (`form`) and figures there, updates MLflow and prints the answer.

    Raises:
        InputError: a file cannot be written.
    """
    trainings: dict[str, dict[int, Curves]] = {
        strategy.name: {seed: read_curves(out / strategy.folder / f"seed-{seed}") for seed in range(seeds)}
        for strategy in strategies
    }
    verdict = compare(trainings, tokens)
    lines = answer(verdict, rates)
    model = strategies[0].recipe.model.name
    picture = draw(
        trainings, out / f"{PICTURE}.{form}", title=f"{model}, {count(tokens)} tokens, {plural(seeds, 'seed')}"
    )
    result = to_object(verdict, rates, lines)
    with replacing(out / RESULT) as part:
        part.write_text(json.dumps(with_schema(result), indent=1, allow_nan=False) + "\n")
    compared = ComparisonFacts(
        id=comparison_id,
        name=strategies[0].name,
        model=model,
        target_loss=verdict.target_loss,
        lines=tuple(lines),
        files=(picture, out / RESULT),
    )
    look = log_comparison(compared, verdict, studies)
    if as_object:
        print_json(result)
    else:
        print(*lines, "Files:", f"  {picture}", f"  {out / RESULT}", sep="\n")
    print_line(look)


def answer(verdict: StrategyVerdict, rates: Mapping[str, Rate]) -> list[str]:
    """Returns sentences: the first strategy to reach the loss, each strategy beside the first, and learning rates."""
    lines = sentences(verdict)
    best = best_by_time(verdict)
    if best is not None and verdict.target_loss is not None and len(verdict.marks) > 1:
        lines.insert(0, f"Soonest at loss {verdict.target_loss:.3f}: {best}.")
    return [*lines, *(f"{name}: learning rate {rate.value:.3g}, {rate.source}." for name, rate in rates.items())]


def to_object(verdict: StrategyVerdict, rates: Mapping[str, Rate], lines: Sequence[str]) -> ConvergenceForm:
    return {
        "target_loss": verdict.target_loss,
        "equal_tokens": verdict.equal_tokens,
        "equal_hours": verdict.equal_hours,
        "strategies": {
            name: {
                "learning_rate": rates[name].value,
                "learning_rate_source": rates[name].source,
                "spread": verdict.spread(name),
                "seeds": {str(seed): dataclasses.asdict(mark) for seed, mark in mark_by_seed.items()},
            }
            for name, mark_by_seed in verdict.marks.items()
        },
        "left_out": dict(verdict.left_out),
        "answer": list(lines),
    }
