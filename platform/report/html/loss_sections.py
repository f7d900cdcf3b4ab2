"""The section on loss: trainings in the studies' folders, and the curves of the numerics gates."""

from collections.abc import Sequence
from pathlib import Path

from platform.report.html.chart import Curve, lines
from platform.report.html.elements import Section, figures, heading, paragraph
from platform.study.result.result import StudyResult
from trainers.records.journal import GateCurves
from trainers.records.training import Steps, Validated
from trainers.records.training_files import RECORDS
from trainers.records.training_lines import Reader, without_redone

_MOST_POINTS = 400
"""Number of points of a curve; with more steps, each point is the mean of consecutive ones."""
_MOST_TRAININGS = 12
_LOSS = "loss (nats a token)"


def loss_curves(results: Sequence[StudyResult], folders: Sequence[Path]) -> Section:
    """Returns the section with training and held-out loss of every training in the folders, and the gates' losses."""
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
    body = ""
    if train:
        charts = [("Training loss", lines("Training loss", train, x="tokens", y=_LOSS, marks=False))]
        if held_out:
            charts.append(("Held-out loss", lines("Held-out loss", held_out, x="tokens", y=_LOSS)))
        body += figures(charts)
    for result in results:
        for recipe_result in result.measured:
            curves = [gate for gate, _ in recipe_result.gates if gate.losses]
            if not curves:
                continue
            gate_curves = [_gate_curve(gate) for gate in curves]
            body += heading(f"Numerics gates of {result.header.name}: {recipe_result.recipe.label}")
            title = f"Numerics gates of {result.header.name}, {recipe_result.recipe.id}"
            body += figures([("The same steps on the same samples", lines(title, gate_curves, x="step", y=_LOSS))])
            if recipe_result.gate is not None:
                body += paragraph(recipe_result.gate.sentence)
    if not train and body:
        body += paragraph(
            "No training is in these folders: `python -m platform.train` trains a winner, and `python -m"
            " platform.converge` compares trainings.",
            note=True,
        )
    return Section(id="losses", title="Loss curves", body=body)


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
    """Returns the tokens after each step, and its loss."""
    tokens: list[float] = []
    losses: list[float] = []
    for step in steps:
        first = step.tokens - (len(step.losses) - 1) * step.tokens_per_step
        tokens += [float(first + i * step.tokens_per_step) for i in range(len(step.losses))]
        losses += step.losses
    return tokens, losses


def thinned(name: str, xs: Sequence[float], ys: Sequence[float], limit: int = _MOST_POINTS) -> Curve:
    """Returns the curve with at most `limit` points, each the mean of as many neighbours at the last one's x."""
    of_each = -(-len(xs) // limit)
    ends = range(0, len(xs), of_each)
    parts = [(xs[i : i + of_each], ys[i : i + of_each]) for i in ends]
    return name, [part[-1] for part, _ in parts], [sum(part) / len(part) for _, part in parts]
