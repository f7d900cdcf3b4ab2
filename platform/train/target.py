"""The target of a training: a study's winner or a layout file, with the speed measured by the search."""

import dataclasses
from pathlib import Path

from platform.common.errors import InputError
from platform.study.folder import located, studies_option, user_path
from platform.study.history import History
from platform.study.journal import JOURNAL
from platform.study.layout_file import read_layout
from platform.study.result.result import StudyResult
from platform.study.study import find, is_study, read
from trainers.records.trust import admit
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A layout with its recipe, batch point and measured speed; unknown parts are None."""

    name: str
    folder: Path
    """Default folder of a training: beside the layout file, or inside the study's folder."""
    layout: Layout
    recipe: Recipe | None = None
    batch: BatchPoint | None = None
    tokens_per_s: float | None = None
    """Throughput measured by the search."""
    matmul_peak_tflops: float | None = None
    """Matrix throughput of a device during the search."""
    device_kind: str | None = None
    """Kind of the search's devices."""
    caveats: tuple[str, ...] = ()
    """Caveats of the search's result, a sentence each."""


def read_target(text: str, studies: Path, recipe_id: str | None, *, trusted: bool = False) -> Target:
    """Returns the target named by the user: a study's winner or a layout file.

    Raises:
        InputError: there is no such study or file, the study has no winner, or it is another user's and not `trusted`.
    """
    path = user_path(text)
    if path.is_file() or path.suffix == ".json":
        return _of_file(path, trusted=trusted)
    folder = find(*located(studies, text))
    admit(folder, (JOURNAL,), trusted=trusted)
    return _of_study(folder, recipe_id)


def _of_study(folder: Path, recipe_id: str | None) -> Target:
    history, _ = read(folder)
    results = StudyResult.of(history)
    if recipe_id is not None and recipe_id not in results.by_id:
        raise InputError(f"study {folder.name} has no recipe {recipe_id}: it has {', '.join(results.by_id)}")
    won = next(((of, winner) for of, winner in results.winners if recipe_id in (None, of.recipe.id)), None)
    if won is None:
        raise InputError(
            f"study {folder.name} has no winner to train: resume it (python -m platform.search --resume"
            f" {folder.name}{studies_option(folder.parent)}), or give a layout.json"
        )
    result, winner = won
    if not winner.recipe.has_model:
        do = f"run {folder / 'command.txt'}" if winner.recipe.command else f"give it {winner.layout.label}"
        raise InputError(f"study {folder.name} searched a training of your own, which trains by itself: {do}")
    return Target(
        name=folder.name,
        folder=folder / "training",
        layout=winner.layout,
        recipe=winner.trained_recipe.as_trained,
        batch=winner.batch,
        tokens_per_s=winner.tokens_per_s,
        matmul_peak_tflops=winner.matmul_peak_tflops,
        device_kind=results.header.cluster.device_kind,
        caveats=tuple(caveat.sentence for caveat in result.caveats),
    )


def _of_file(path: Path, *, trusted: bool) -> Target:
    file = read_layout(path)
    target = Target(
        name=path.stem,
        folder=path.absolute().parent / "training",
        layout=file.layout,
        recipe=file.recipe and file.recipe.as_trained,
        batch=file.batch,
        caveats=file.caveats,
    )
    folder = path.absolute().parent
    if not is_study(folder):
        return target
    admit(folder, (JOURNAL,), trusted=trusted)
    return _with_promise(target, read(folder)[0])


def _with_promise(target: Target, history: History) -> Target:
    """Returns the target with speed and devices from the study that contains its file."""
    if history.header is not None:
        target = dataclasses.replace(target, device_kind=history.header.cluster.device_kind)
    for measurement in history.measurements:
        same = measurement.layout == target.layout and measurement.batch == target.batch and measurement.tokens_per_s
        if same and target.recipe is not None and measurement.trained_recipe.as_trained.id == target.recipe.id:
            return dataclasses.replace(
                target, tokens_per_s=measurement.tokens_per_s, matmul_peak_tflops=measurement.matmul_peak_tflops
            )
    return target
