"""The complete request: the options of a new study, or those that a resumed one began with."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import search_spaces
import search_spaces.changes as changes
from platform.common.builder import BuildQuestion
from platform.common.errors import InputError
from platform.search.setup import old_studies
from platform.search.setup.command_options import ONLY_OF_COMMANDS, check_options, option_name, space_of
from platform.search.setup.options import SearchOptions, StudyOptions
from platform.search.setup.rechecked import refuse_others, subject_of
from platform.study.bucket import is_address
from platform.study.layout_file import LayoutFile, read_layout
from platform.study.model_difference import nearest_difference
from search_spaces.candidate import Candidate, RejectedLayout
from search_spaces.degrees import refilled
from search_spaces.space import Space
from search_spaces.stand_in import StandIn, stand_in_of
from trainers import data
from trainers.spec.batch import BatchPoint, divides
from trainers.spec.codec import identity
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

_COUNTS = (1, 2, 4, 8, 16)
"""Numbers of devices for which it is checked that anything runs, if none is given."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SearchRequest:
    """The subject of a study, before the cluster is known."""

    space: Space
    changes: tuple[str, ...]
    """The changes of `--set`; `space` includes them, its miniature does not yet."""
    fixed: LayoutFile | None
    """The only layout to measure, from `--layout`."""
    old: old_studies.OldStudies | None
    """The studies to learn from, from `--learn-from`."""
    searcher: str
    seed: int
    cap_gib: float | None
    num_devices: int | None
    """The number of `--gpus`; None for the space's or the cluster's."""
    tokens: float
    repeats: int | None
    """Runs of each finalist in fresh processes; None for the space's number."""
    steps: int | None
    """Timed optimizer steps of each point; None for as many as fill a rung."""
    whole_steps: bool
    """Whether timed steps have all micro-steps of the recipe's step, so that none is derived."""
    every_point: bool
    """Whether the space's named points are measured exactly as given, without cutting any short."""
    price_per_gpu_h: float | None
    profile: bool
    """Whether the winner is profiled at the end; not kept, because a study may be resumed for it."""
    options: StudyOptions
    """The options that the request was read from, for the journal."""
    stand_in: StandIn | None = None
    """The model whose predictions order the trials of a user's own training."""
    only: tuple[Candidate, ...] = ()
    """The candidates if they are an old study's; empty for all of the space."""

    @property
    def wanted_devices(self) -> int | None:
        """Number of devices of a trial; None for all of the cluster."""
        fixed = None if self.fixed is None else self.fixed.layout.world_size
        return self.num_devices or fixed or self.space.num_workers

    def on(self, space: Space, num_devices: int) -> tuple[tuple[Candidate, ...], tuple[RejectedLayout, ...]]:
        """Returns the candidates of `space` (the request's or its miniature) on `num_devices`, and the rejected
        layouts.

        Raises:
            InputError: nothing can run on so many devices.
        """
        if self.only:
            refuse_others(self.only, [recipe.id for recipe in space.recipes], space.name)
            return self.only, ()
        try:
            if self.fixed is None:
                return _candidates(space, num_devices)
            layout, batch = self.fixed.layout, self.fixed.batch
            if self.num_devices is not None:
                layout = refilled(layout, num_devices)
            if layout.world_size > num_devices:
                raise ValueError(f"the layout takes {layout.world_size} devices, the cluster has {num_devices}")
            named_micro_batches = sorted({point.micro_batch for point in space.points})
            listed = (batch.micro_batch,) if batch else space.micro_batches or tuple(named_micro_batches)
            refine = space.refine and batch is None and not space.points
            ladders = ((recipe, listed if batch else space.ladder(listed, recipe, layout)) for recipe in space.recipes)
            return tuple(_one_layout(recipe, layout, ladder, refine) for recipe, ladder in ladders), ()
        except ValueError as error:
            raise InputError(str(error)) from error


def read_request(options: SearchOptions) -> SearchRequest:
    """Returns the request of a new study.

    Raises:
        InputError: a space, axis, value, file or data does not exist or is invalid.
    """
    study = options.study
    if study.recheck is not None:
        subject = subject_of(Path(study.recheck))
        request = read_request(dataclasses.replace(options, study=subject.options))
        # A command's sequence length is known from the old study.
        kept_options = dataclasses.replace(study, seq_len=subject.options.seq_len)
        return dataclasses.replace(request, only=subject.candidates, options=kept_options)
    if options.profile and options.dry_run:
        raise InputError("--profile profiles the winner's run, and --dry-run runs nothing: leave out one of them")
    if study.is_own:
        check_options(options)
    fixed = read_layout(Path(study.layout)) if study.layout else None
    try:
        space = _space(study, fixed)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error
    if study.space is not None:
        study = dataclasses.replace(study, space=search_spaces.pinned(study.space))
    if study.model is not None:
        try:
            study = dataclasses.replace(study, model=search_spaces.pinned(study.model))
        except ValueError as error:
            raise InputError(str(error)) from error
    recipes = [recipe for variant in (space, space.miniature) if variant for recipe in variant.recipes]
    models = [recipe.model for recipe in recipes if recipe.has_model]
    with BuildQuestion(models, study.space or str(study.layout)) as builder:
        request = _request(dataclasses.replace(options, study=study), space, fixed)
        builder.check()
    return request


def _request(options: SearchOptions, space: Space, fixed: LayoutFile | None) -> SearchRequest:
    study = options.study
    try:
        for recipe in space.recipes:
            if recipe.has_model:
                data.source(recipe)
    except ValueError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"the data cannot be read: {error}") from error
    request = SearchRequest(
        space=space,
        changes=study.set,
        fixed=fixed,
        old=_old(options, space),
        # The guided search ends when no point is worth its cost and skips points that must run out of memory, so it
        # does not suit --all.
        searcher="sweep" if study.all and study.searcher == "guided" else study.searcher,
        seed=study.seed,
        cap_gib=study.device_memory_gib,
        num_devices=study.gpus[0] if study.gpus else None,
        tokens=study.tokens or space.tokens,
        repeats=study.repeats,
        steps=study.steps,
        whole_steps=study.whole_steps,
        every_point=study.all,
        price_per_gpu_h=study.price_per_gpu_h,
        profile=options.profile,
        options=study,
        stand_in=_stand_in(study, space),
    )
    if options.resume is None:
        _check_runs(request)
    return request


def _stand_in(study: StudyOptions, space: Space) -> StandIn | None:
    """Returns the model that stands in for the user's training; None without one.

    Raises:
        InputError: the model cannot be read, or `means` has an invalid entry.
    """
    if study.model is None:
        if study.means:
            raise InputError("means says what values mean for a model: add model, the path of its config.json")
        return None
    if Path(study.model).suffix == ".py":  # its code would run
        raise InputError(f"model is a config.json or an id of the hub, got {study.model}")
    try:
        return stand_in_of(search_spaces.load(study.model).recipe.model, study.means, space)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error


def _space(study: StudyOptions, fixed: LayoutFile | None) -> Space:
    """Returns the space that the options name, with their changes.

    Raises:
        ValueError: the space, an axis, a value or a point does not exist.
    """
    if study.is_own:
        return space_of(study)
    if options := [name for name in ONLY_OF_COMMANDS if getattr(study, name) not in (None, ())]:
        raise InputError(f"{option_name(options[0])} is of --build or a command behind --, which is not there: leave"
                         " it out")  # fmt: skip
    space = None if study.space is None else search_spaces.load(study.space)
    if fixed is not None:
        _check_changes(fixed, study)
    if fixed is not None and fixed.recipe is not None:
        space = _space_of(fixed, fixed.recipe, space, str(study.layout))
    elif space is None:
        raise InputError("name a space to search (--list prints them), as in: python -m platform.search bloom7b")
    else:
        space = space.with_changes(study.set)
    if study.all and not space.points:
        raise InputError(f"--all measures named points, and space {space.name} has none: leave it out")
    path = study.data
    if path is None:
        return space
    if any(change.axis == "data" for change in changes.parse(study.set)):
        raise InputError(f"--data {path} and --set data name the data twice: leave out one of them")
    if any(change.axis == "trained_tokens" for change in changes.parse(study.set)):
        return _every_recipe(space, lambda recipe: dataclasses.replace(recipe, data=path))
    return _every_recipe(space, lambda recipe: data.with_data(recipe, path))


def _check_runs(request: SearchRequest) -> None:
    """Checks that an engine can run something on some cluster, or on the given number of devices.

    Raises:
        InputError: nothing can run.
    """
    num_devices = request.wanted_devices
    reasons: list[str] = []
    for count in _COUNTS if num_devices is None else (num_devices,):
        space = dataclasses.replace(request.space, num_workers=count).with_shared_batch((count,))
        try:
            candidates, _ = request.on(space, count)
        except InputError:
            if num_devices is not None:
                raise
            continue
        for candidate in candidates:
            if (reason := standing_refusal(candidate.recipe, candidate.layout, count)) is None:
                return
            reasons.append(reason)
    if reasons:
        raise InputError(f"nothing of space {request.space.name} can run: {reasons[0]}")


def resumed(options: SearchOptions, stored: StudyOptions) -> SearchOptions:
    """Returns the options of a resumed study: those `stored` with it, with the present budgets and address.

    If the study that it learned from no longer exists, that option is dropped.

    Raises:
        InputError: an option is given that a resumed study keeps.
    """
    if changed := options.study.differences(stored):
        raise InputError(f"a resumed study keeps {', '.join(changed)}: leave it out, or start a new study")
    if stored.learn_from is not None:
        try:
            old_studies.folders_of(options.studies, stored.learn_from)
        except InputError:
            stored = dataclasses.replace(stored, learn_from=None)
    return dataclasses.replace(options, study=stored)


def _old(options: SearchOptions, space: Space) -> old_studies.OldStudies | None:
    """Returns the studies of `--learn-from`, without the one that is resumed.

    Raises:
        InputError: they cannot be used, or the searcher learns nothing from them.
    """
    study = options.study
    if study.learn_from is None:
        return None
    if study.searcher != "guided":
        raise InputError(
            f"--learn-from teaches the guided searcher alone, got --searcher {study.searcher}: leave out one of them"
        )
    if study.all:
        raise InputError("--learn-from says which points to leave out, and --all leaves out none: give one of them")
    if is_address(study.learn_from) and not options.trust:
        raise InputError(
            f"who wrote what lies at {study.learn_from} is not known here: add --trust if you trust all who may write"
            " there"
        )
    folders = old_studies.folders_of(options.studies, study.learn_from)
    itself = Path(options.resume).name if options.resume else None
    others = [path for path in folders if path.name != itself]
    return old_studies.read_old_studies(others, space, trusted=options.trust) if others else None


def _check_changes(fixed: LayoutFile, options: StudyOptions) -> None:
    """Checks that no `--set` is overruled by the layout file, where it would have no effect.

    Raises:
        InputError: one is.
    """
    if fixed.recipe is not None and options.set:
        raise InputError(
            f"the layout file {options.layout} holds its own recipe, which --set does not change, got --set"
            f' {options.set[0]}: leave out --set, or take "recipe" and "batch" out of the file and name a space'
        )
    for text, change in zip(options.set, changes.parse(options.set), strict=True):
        if change.kind in ("layout", "point") or (change.kind == "micro_batch" and fixed.batch is not None):
            raise InputError(
                f"the layout file {options.layout} fixes the layout, and the batch where it holds one, got --set"
                f" {text}: leave it out, or search a space without --layout"
            )


def _space_of(fixed: LayoutFile, recipe: Recipe, named_space: Space | None, path: str) -> Space:
    """Returns the space of a layout file with a recipe: only that recipe, without a miniature.

    If a space is named too, its statements on time and memory apply, or its miniature's.

    Raises:
        InputError: the named space has another model.
    """
    if named_space is None:
        return Space(
            name="layout",
            summary="one layout from a file",
            recipe=recipe,
            axes={"engine": (fixed.layout.engine,)},
            micro_batches=(fixed.batch.micro_batch,) if fixed.batch else (1,),
            doubling=fixed.batch is None,
        )
    for space in (named_space, named_space.miniature):
        if space is not None and identity(recipe.model) in {
            identity(space_recipe.model) for space_recipe in space.recipes
        }:
            return dataclasses.replace(space, recipe=recipe, further_recipes=(), assumed=(), miniature=None)
    keys = nearest_difference(recipe, named_space.recipes)
    raise InputError(
        f"space {named_space.name} trains {named_space.recipe.model.name}, got a layout file with a recipe of another"
        f" model ({path}: {recipe.model.name}{f' with {keys}' if keys else ''}): leave out the space, or name that"
        " model's"
    )


def _one_layout(recipe: Recipe, layout: Layout, micro_batches: Sequence[int], refine: bool) -> Candidate:
    """Returns `layout` with those micro-batches that divide the global batch.

    Raises:
        ValueError: none does.
    """
    ladder = tuple(micro_batch for micro_batch in sorted(micro_batches) if divides(recipe, layout, micro_batch))
    if not ladder:
        BatchPoint.of(recipe, layout, micro_batches[0])  # raises the error that says why
    return Candidate(recipe=recipe, layout=layout, micro_batches=ladder, refine=refine)


def _candidates(space: Space, num_devices: int) -> tuple[tuple[Candidate, ...], tuple[RejectedLayout, ...]]:
    """Returns the candidates of `space` and the rejected layouts.

    Raises:
        ValueError: nothing can run; the text names a batch with which something can, if there is one.
    """
    try:
        return space.candidates(num_devices)
    except ValueError as error:
        other = space.with_shared_batch((num_devices,), stated=True)
        if space.points or other == space or not _runs(other, num_devices):
            raise
        raise ValueError(
            f"{error}; {num_devices} devices would share --set global_batch={other.recipe.global_batch}"
        ) from error


def _runs(space: Space, num_devices: int) -> bool:
    try:
        candidates, _ = space.candidates(num_devices)
    except ValueError:
        return False
    return any(standing_refusal(entry.recipe, entry.layout, num_devices) is None for entry in candidates)


def _every_recipe(space: Space, change: Callable[[Recipe], Recipe]) -> Space:
    return dataclasses.replace(
        space,
        recipe=change(space.recipe),
        further_recipes=tuple(change(recipe) for recipe in space.further_recipes),
        miniature=None if space.miniature is None else _every_recipe(space.miniature, change),
    )
