"""Makes the `TrainingPlan` from options and target: recipe, phases with batch points, schedule, held-out data."""

import dataclasses
from collections.abc import Iterator, Mapping

from platform.common.builder import BuildQuestion
from platform.common.errors import InputError
from platform.common.text import plural
from platform.study.folder import user_path
from platform.study.layout_file import read_layout
from platform.train.data_path import data_path
from platform.train.initial_model import initial_weights, recipe_of
from platform.train.target import Target
from platform.train.token_files import checked_content
from platform.train.train_options import TrainOptions
from trainers import data
from trainers.data import ParquetTokens
from trainers.records.data_content import DataContent
from trainers.records.training import LearningRateSchedule, TrainingPhase, TrainingPlan, Validation
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

_WARMUP_SHARE, _DECAY_SHARE = 0.01, 0.2
_FINAL_SHARE = {"constant": 1.0, "cosine": 0.1, "wsd": 0.0}
_MOST_HELD_OUT_SHARE = 0.05
_MOST_HELD_OUT_TOKENS = 2**20
_VALIDATIONS = 20
"""Default number of validations in a training."""


def make_plan(options: TrainOptions, target: Target, before: TrainingPlan | None, tokens_done: int = 0) -> TrainingPlan:
    """Returns the plan that the options describe.

    `before` is the plan of a training that resumes after `tokens_done` tokens; None for a new training.

    Raises:
        InputError: the options cannot be combined or the model cannot be trained.
    """
    base = target.recipe or (before and before.recipe)
    if base is None and options.start_from is not None:
        base = recipe_of(options.start_from)
    if base is None:
        raise InputError(
            f"{options.target} holds a layout without a recipe, and there is no training in its folder to resume:"
            " give the layout.json of a search, a study, or the folder of a model by --start-from"
        )
    if before is not None or target.tokens_per_s is not None:  # the model was built before
        return _planned(options, target, base, before, tokens_done)
    with BuildQuestion((base.model,), str(options.target)) as builder:
        plan = _planned(options, target, base, before, tokens_done)
        builder.check()
    return plan


def _planned(
    options: TrainOptions, target: Target, base: Recipe, before: TrainingPlan | None, tokens_done: int
) -> TrainingPlan:
    try:
        recipe = _recipe(options, base)
        validation = _validation(options, recipe)
        finished_phases = (
            {} if before is None else {finished_phase.end_tokens: finished_phase for finished_phase in before.phases}
        )
        phases = tuple(
            _phases(
                options, target, recipe, {end: finished_phases[end] for end in finished_phases if end <= tokens_done}
            )
        )
        # Raises an error if the data are too small.
        data.source(recipe, held_out=0 if validation.data else validation.sequences)
        for phase in phases:
            if reason := standing_refusal(recipe, phase.layout, phase.layout.world_size):
                raise InputError(reason)
        plan = TrainingPlan(
            recipe=recipe,
            phases=phases,
            lr_schedule=_schedule(options),
            validation=validation,
            data_content=_content(options, recipe, before and before.data_content),
            validation_content=_content(
                options, dataclasses.replace(recipe, data=validation.data), before and before.validation_content
            )
            if validation.data
            else None,
            initial_weights=_initial_weights(options, recipe, before, tokens_done),
        )
    except OSError as error:
        raise InputError(f"the data cannot be read: {error}") from error
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error
    return plan


def _recipe(options: TrainOptions, base: Recipe) -> Recipe:
    changes: dict[str, object] = {}
    if options.data is not None:
        path = data_path(options.data)
        if path != base.data:  # the same data were searched with the loss that the user wanted
            base = data.with_data(base, path)
    for name in ("data_order", "learning_rate", "seed"):
        if (value := getattr(options, name)) is not None:
            changes[name] = value
    return dataclasses.replace(base, **changes)  # type: ignore[reportArgumentType]


def _initial_weights(options: TrainOptions, recipe: Recipe, before: TrainingPlan | None, tokens_done: int) -> str:
    """Returns the folder of the initial weights, which need not exist once a resumed training has used it."""
    if options.start_from is None:
        return ""
    path = str(user_path(options.start_from).absolute())
    if before is not None and tokens_done and before.initial_weights == path:
        return path
    return initial_weights(options.start_from, recipe)


def _content(options: TrainOptions, recipe: Recipe, before: DataContent | None) -> DataContent | None:
    """Returns the content of the recipe's token files, checked against `before`; None for the stream."""
    source = data.plain_source(recipe)
    return checked_content(source, before, verify=options.verify_data) if isinstance(source, ParquetTokens) else None


def _schedule(options: TrainOptions) -> LearningRateSchedule:
    tokens, kind = options.tokens, options.lr_schedule
    warmup = options.warmup_tokens if options.warmup_tokens is not None else round(tokens * _WARMUP_SHARE)
    decay = options.decay_tokens
    if decay is not None and kind != "wsd":
        raise InputError(f"--decay-tokens belongs to --lr-schedule wsd, got --lr-schedule {kind}: leave it out")
    if decay is None:
        decay = round(tokens * _DECAY_SHARE) if kind == "wsd" else 0
    final = options.final_share if options.final_share is not None else _FINAL_SHARE[kind]
    return LearningRateSchedule(kind=kind, tokens=tokens, warmup_tokens=warmup, decay_tokens=decay, final_share=final)


def _phases(
    options: TrainOptions, target: Target, recipe: Recipe, finished_phases: Mapping[int, TrainingPhase]
) -> Iterator[TrainingPhase]:
    """Yields the phases in order. `finished_phases`, by the token count of their end, are kept as they ran."""
    end = 0
    for phase in options.phases:
        end += phase.tokens
        if end in finished_phases and finished_phases[end].global_batch == phase.global_batch:
            yield finished_phases[end]
            continue
        layout, batch = target.layout, target.batch
        if phase.layout is not None:
            file = read_layout(phase.layout)
            layout, batch = file.layout, file.batch
        yield TrainingPhase(end_tokens=end, layout=layout, batch=batch_for(recipe, layout, phase.global_batch, batch))
    if options.phases and end >= options.tokens:
        raise InputError(
            f"the phases of --phase take {end:,} tokens, the training {options.tokens:,}: give the last phase some"
        )
    batch = batch_for(recipe, target.layout, recipe.global_batch, target.batch)
    yield TrainingPhase(end_tokens=options.tokens, layout=target.layout, batch=batch)


def batch_for(recipe: Recipe, layout: Layout, global_batch: int, measured: BatchPoint | None) -> BatchPoint:
    """Returns the batch point with `global_batch` on `layout`.

    Its micro-batch is the largest divisor of the rank's batch up to the measured one, which is known to fit; 1 if none
    was measured.

    Raises:
        InputError: the data-parallel ranks do not divide the global batch.
    """
    rank_batch, remainder = divmod(global_batch, layout.data_parallel)
    if remainder or not rank_batch:
        raise InputError(
            f"a global batch of {global_batch} does not divide evenly over"
            f" {plural(layout.data_parallel, 'data-parallel rank')}: choose a multiple"
        )
    limit = min(rank_batch, measured.micro_batch if measured else 1)
    micro_batch = max(size for size in range(1, limit + 1) if rank_batch % size == 0)
    return BatchPoint.of(recipe.of_batch(global_batch), layout, micro_batch)


def _validation(options: TrainOptions, recipe: Recipe) -> Validation:
    every_tokens = options.val_every or max(1, options.tokens // _VALIDATIONS)
    if options.val_data is not None:
        path = data_path(options.val_data)
        validation_data = data.plain_source(dataclasses.replace(recipe, data=path, data_order="file"))
        if not isinstance(validation_data, ParquetTokens):
            raise InputError(f"--val-data names token files, got {path}")
        val_tokens = _MOST_HELD_OUT_TOKENS if options.val_tokens is None else options.val_tokens
        return Validation(
            sequences=min(validation_data.num_sequences, -(-val_tokens // recipe.seq_len)),
            every_tokens=every_tokens,
            data=path,
        )
    if options.val_tokens is not None:
        return Validation(sequences=-(-options.val_tokens // recipe.seq_len), every_tokens=every_tokens)
    source = data.plain_source(recipe)
    if not isinstance(source, ParquetTokens):
        return Validation(sequences=max(1, _MOST_HELD_OUT_TOKENS // 2**6 // recipe.seq_len), every_tokens=every_tokens)
    limit = min(_MOST_HELD_OUT_TOKENS, int(source.num_sequences * recipe.seq_len * _MOST_HELD_OUT_SHARE))
    return Validation(sequences=limit // recipe.seq_len, every_tokens=every_tokens)
