"""The section on loss: trainings in the studies' folders, and the curves of the numerics gates."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from platform.report.html.chart import Curve, lines
from platform.report.html.elements import Block, Charts, Heading, Paragraph
from platform.study.result.result import StudyResult
from trainers.records.journal import GateCurves
from trainers.records.training import Steps, Validated
from trainers.records.training_files import RECORDS
from trainers.records.training_lines import Reader, without_redone

_MOST_POINTS = 400
"""Largest number of points of a curve; with more steps, a point is the mean of consecutive ones."""
_MOST_TRAININGS = 12
_LOSS = "loss (nats a token)"


def loss_curves(results: Sequence[StudyResult], folders: Sequence[Path]) -> Iterator[Block]:
    """Yields training and held-out loss of every training in the folders, and the gates' losses."""
    train: list[Curve] = []
    held_out: list[Curve] = []
    for path in _trainings(folders)[:_MOST_TRAININGS]:
        records = without_redone(Reader(path).read())
        name = f"{path.parent.parent.name}/{path.parent.name}"
        steps = [record for record in records if isinstance(record, Steps)]
        validated = [record for record in records if isinstance(record, Validated)]
        if steps:
            train.append(thinned(name, *of_steps(steps)))
        if validated:
            held_out.append(
                (
                    name,
                    [float(validation.tokens) for validation in validated],
                    [validation.loss for validation in validated],
                )
            )
    if train:
        charts = [("Training loss", lines("Training loss", train, x="tokens", y=_LOSS, marks=False))]
        if held_out:
            charts.append(("Held-out loss", lines("Held-out loss", held_out, x="tokens", y=_LOSS)))
        yield Charts(charts)
    gated = [
        (result.header.name, recipe_result, curves)
        for result in results
        for recipe_result in result.measured
        if (curves := [_gate_curve(gate) for gate, _ in recipe_result.gates if gate.losses])
    ]
    for name, recipe_result, curves in gated:
        recipe = recipe_result.recipe
        yield Heading(f"Numerics gates of {name}: {recipe.label}")
        chart = lines(f"Numerics gates of {name}, {recipe.id}", curves, x="step", y=_LOSS)
        yield Charts([("The same steps on the same samples", chart)])
        if recipe_result.gate is not None:
            yield Paragraph(recipe_result.gate.sentence)
    if gated and not train:
        words = "No training is in these folders: `python -m platform.train` trains a winner, and `python -m"
        yield Paragraph(f"{words} platform.converge` compares trainings.", note=True)


def _gate_curve(gate: GateCurves) -> Curve:
    name = f"{gate.layout.label}{' (reference)' if gate.is_reference else ''}"
    return name, [float(i + 1) for i in range(len(gate.losses))], list(gate.losses)


def _trainings(folders: Sequence[Path]) -> list[Path]:
    """Returns the records of the trainings in the studies' folders, and of comparisons in them."""
    paths = [
        path for folder in folders for pattern in ("*", "*/*", "*/*/*") for path in folder.glob(f"{pattern}/{RECORDS}")
    ]
    return sorted(set(paths))


def of_steps(steps: Sequence[Steps]) -> tuple[list[float], list[float]]:
    """Returns the tokens after each step, and each step's loss."""
    tokens: list[float] = []
    losses: list[float] = []
    for step in steps:
        first = step.tokens - (len(step.losses) - 1) * step.tokens_per_step
        tokens += [float(first + i * step.tokens_per_step) for i in range(len(step.losses))]
        losses += step.losses
    return tokens, losses


def thinned(name: str, xs: Sequence[float], ys: Sequence[float], limit: int = _MOST_POINTS) -> Curve:
    """Returns the curve with at most `limit` points, each the mean of consecutive points at the last one's x."""
    of_each = -(-len(xs) // limit)
    ends = range(0, len(xs), of_each)
    parts = [(xs[i : i + of_each], ys[i : i + of_each]) for i in ends]
    return name, [part[-1] for part, _ in parts], [sum(part) / len(part) for _, part in parts]
