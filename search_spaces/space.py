"""`Space`: the recipes and layouts to try for one model."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from search_spaces.candidate import Candidate, Point, RejectedLayout, joined, ladder_of
from search_spaces.changes import GRAD_ACCUM, MICRO_BATCH, AxisChange, parse, spelling_hint
from search_spaces.degrees import Reach, fewest_devices, fill, splits_model, with_divisors
from search_spaces.ladder import dividing, doubled, every
from search_spaces.reasons import Reasons
from search_spaces.shared_batch import shared_batch
from search_spaces.space_fields import SpaceFields
from search_spaces.variations import may_run
from trainers.spec.axis import axes_of
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import MODEL_PARALLEL
from trainers.spec.recipe import Recipe

_MANY_DEVICES = 128
_ON_MANY: Mapping[str, tuple[Any, ...]] = {"virtual": (4, 8), "checkpointing": ("selective",)}
"""Values that a plan for that many devices adds to layouts that split the model."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Space(SpaceFields):
    """The layouts and batch points that may be tried for one model, from the fields of `SpaceFields`.

    Raises:
        ValueError: as for `SpaceFields`.
    """

    miniature: "Space | None" = None
    """The space for machines without a GPU: a small model of the same architecture, or the model itself if it is small
    enough.
    """

    def candidates(self, num_devices: int) -> tuple[tuple[Candidate, ...], tuple[RejectedLayout, ...]]:
        """Returns the candidates that can run on `num_devices`, in the order of the axes, and the layouts that cannot,
        with reasons.

        A combination without meaning (DDP at stage 3), or equal to an earlier layout, is left out silently. A
        micro-batch that does not divide the global batch is left out of the ladder; a layout with an empty ladder is
        rejected. If no layout is left, all possible degrees are tried.

        Raises:
            ValueError: there are fewer devices than `num_workers`, a named point has no meaning, or nothing can run.
        """
        world_size = num_devices if self.num_workers is None else self.num_workers
        if num_devices < world_size:
            raise ValueError(f"space {self.name} takes {world_size} devices, there are {num_devices}")
        candidates, rejected, against = self._candidates(world_size, "named")
        if not candidates:
            candidates, rejected, _ = self._candidates(world_size, "all")
        if not candidates:
            raise ValueError(f"no layout of space {self.name} can run on {world_size} devices: {against.text}")
        return candidates, rejected

    def _candidates(
        self, world_size: int, reach: Reach
    ) -> tuple[tuple[Candidate, ...], tuple[RejectedLayout, ...], Reasons]:
        candidates: dict[str, Candidate] = {}
        rejected: list[RejectedLayout] = []
        against = Reasons()
        keys: set[str] = set()
        asks_to_split = bool(self.points) or any(axis in self.axes for axis in MODEL_PARALLEL)
        for recipe, values, micro_batches, name in self.combinations(world_size, reach):
            try:
                layout = fill(values, world_size)
            except ValueError as error:
                if name:
                    raise ValueError(f"point {name} of space {self.name}: {error}") from error
                against.add(meaningless=str(error))
                continue
            key = f"{recipe.id}-{layout.id}"
            if key in keys and not self.points:
                continue
            keys.add(key)
            ladder, reason = ladder_of(recipe, layout, self.ladder(micro_batches, recipe, layout), world_size)
            if reason is None:
                fresh = Candidate(
                    recipe=recipe,
                    layout=layout,
                    micro_batches=ladder,
                    name=name,
                    refine=self.refine and not name,
                    finds_largest=self.finds_largest,
                )
                candidates[key] = joined(candidates[key], fresh) if key in candidates else fresh
            elif layout.model_parallel > 1 and not asks_to_split:
                against.add(rejected=reason)
            else:
                rejected.append(RejectedLayout(recipe=recipe, layout=layout, reason=reason, name=name))
                against.add(rejected=reason)
        return tuple(candidates.values()), tuple(rejected), against

    def ladder(self, micro_batches: tuple[int, ...], recipe: Recipe, layout: Layout) -> tuple[int, ...]:
        """Returns the micro-batches at which a layout may be tried, given the listed `micro_batches`; some may not
        divide the batch.
        """
        if self.points or MICRO_BATCH in self.chosen:
            return micro_batches
        if self.finds_largest:
            return every(recipe, layout)
        return (doubled if self.doubling else dividing)(micro_batches, recipe, layout)

    def with_changes(self, texts: Sequence[str]) -> "Space":
        """Returns the space with axes replaced, as `--set axis=value,value` asks; its miniature is not changed.

        A change of a Recipe field makes another recipe (several values make several recipes, the first being the
        reference). In a space of named points an axis that the points fix cannot be changed, and `point=a,b` selects
        points.

        Raises:
            ValueError: as for `changes.parse`; or a value allows no layout on any number of devices.
        """
        space = self
        requested = parse(texts)
        if {GRAD_ACCUM, "global_batch"} <= {change.axis for change in requested}:
            raise ValueError(
                "grad_accum and global_batch contradict: each fixes the other, given the micro-batch, so --set one of"
                " them"
            )
        # Some fields of a recipe may only be set after others, which stand before them.
        place = [*axes_of(Recipe)].index
        for change in sorted(requested, key=lambda change: place(change.axis) if change.kind == "recipe" else 0):
            space = space._changed(change)
        space._check(requested)
        return space

    def on_workers(self, num_workers: int) -> "Space":
        """Returns the space on `num_workers` devices. Its time budget grows with their number, because CPU workers
        share the cores, and doubles from the number on at which the model is split, with three or four times as many
        layouts.
        """
        budget_s = self.time_budget_s
        if budget_s is not None and self.num_workers is not None:
            budget_s *= max(1.0, num_workers / self.num_workers)
            splits = bool(self.model_parallel) and self.num_workers < self.model_parallel_from <= num_workers
            budget_s *= 2.0 if splits else 1.0
        return dataclasses.replace(self, num_workers=num_workers, time_budget_s=budget_s)

    def with_shared_batch(self, counts: Sequence[int], *, stated: bool = False) -> "Space":
        """Returns the space with an assumed global batch that devices of all `counts` divide evenly; a batch that is
        not assumed is changed only if `stated`.
        """
        if "global_batch" not in self.assumed and not stated:
            return self
        length = max(recipe.seq_len for recipe in self.recipes)
        first, *further = (
            recipe
            if recipe.grad_accum
            else dataclasses.replace(
                recipe, global_batch=shared_batch(recipe.global_batch, counts, self.micro_batches, length)
            )
            for recipe in self.recipes
        )
        return dataclasses.replace(self, recipe=first, further_recipes=tuple(further))

    def widened(self, num_devices: int) -> "Space":
        """Returns the space to plan for `num_devices`: for many devices with more virtual stages and selective
        checkpointing, because no search tries all layouts there. An axis with one value, such as from `--set`, stays.
        """
        if num_devices < _MANY_DEVICES or not self.model_parallel:
            return self
        values_by_axis = {axis: self.model_parallel.get(axis) or self.axes.get(axis, ()) for axis in _ON_MANY}
        wider = {
            axis: tuple(dict.fromkeys((*values, *_ON_MANY[axis])))
            for axis, values in values_by_axis.items()
            if len(values) > 1
        }
        return dataclasses.replace(self, model_parallel={**self.model_parallel, **wider})

    def _changed(self, change: AxisChange) -> "Space":
        axis, values = change.axis, change.values
        if change.kind == "point":
            names = [point.name for point in self.points]
            for value in values:
                if value not in names:
                    points_text = f"its points are {', '.join(names)}" if names else "it has no named points"
                    raise ValueError(
                        f"space {self.name} has no point {value!r}{spelling_hint(value, names)} ({points_text})"
                    )
            return dataclasses.replace(self, points=tuple(point for point in self.points if point.name in values))
        same = {axis, "global_batch"} if axis == GRAD_ACCUM else {axis}
        fixed = self.points and (axis == MICRO_BATCH or any(same & _fixed(point) for point in self.points))
        if fixed or (self.points and len(values) > 1):
            obstacle = f"fixed by the named points of space {self.name}" if fixed else f"one value in space {self.name}"
            raise ValueError(f"{axis} is {obstacle}: it cannot be set to {', '.join(map(str, values))}")
        if change.kind == "micro_batch":
            return dataclasses.replace(
                self,
                micro_batches=tuple(sorted(values)),
                doubling=False,
                refine=False,
                chosen=(*self.chosen, axis),
            )
        if change.kind == "layout":
            model_parallel = {axis: values} if axis in self.model_parallel else {}
            variations = ({**varied, axis: values} if axis in varied else varied for varied in self.variations)
            return dataclasses.replace(
                self,
                axes={**self.axes, axis: values},
                optional_axes=tuple(optional_axis for optional_axis in self.optional_axes if optional_axis != axis),
                model_parallel={**self.model_parallel, **model_parallel},
                variations=tuple(variations),
                narrowed={name: reason for name, reason in self.narrowed.items() if name != axis},
                chosen=(*self.chosen, axis),
            )
        if axis == GRAD_ACCUM and (wrong := [value for value in values if value < 1]):
            raise ValueError(f"grad_accum must be at least 1, got {wrong[0]}")
        # Either accumulation or global batch is set, and the other follows.
        follows = {GRAD_ACCUM: {"global_batch": 0}, "global_batch": {GRAD_ACCUM: 0}}.get(axis, {})
        recipes = [
            dataclasses.replace(recipe, **{axis: value, **follows}) for value in values for recipe in self.recipes
        ]
        first, *further = dict.fromkeys(recipes)
        assumed = tuple(assumed_axis for assumed_axis in self.assumed if assumed_axis not in {axis, *follows})
        return dataclasses.replace(self, recipe=first, further_recipes=tuple(further), assumed=assumed)

    def _check(self, requested: Sequence[AxisChange]) -> None:
        """Checks that every requested value can run on the smallest number of devices that its degrees allow."""
        unproven = {(change.axis, value) for change in requested for value in change.values}
        against: dict[tuple[str, Any], Reasons] = {}
        for recipe, values, micro_batches, _ in self.combinations():
            if not unproven:
                return
            num_devices = fewest_devices(values)
            for micro_batch in micro_batches:
                all_values = {**values, MICRO_BATCH: micro_batch}
                present = [(c.axis, all_values.get(c.axis, getattr(recipe, c.axis, None))) for c in requested]
                meaningless, reason = "", None
                try:
                    _, reason = ladder_of(recipe, fill(values, num_devices), (micro_batch,), num_devices)
                except ValueError as error:
                    meaningless = str(error)
                if not meaningless and reason is None:
                    unproven.difference_update(present)
                for pair in present:
                    against.setdefault(pair, Reasons()).add(rejected=reason or "", meaningless=meaningless)
        for change in requested:
            for value in change.values:
                refusal = against.get((change.axis, value))
                if refusal is not None and (change.axis, value) in unproven:
                    raise ValueError(
                        f"{change.axis}={value} gives no layout on any cluster: {refusal.text_on(change.axis, value)}"
                    )

    def combinations(
        self, num_devices: int | None = None, reach: Reach = "named"
    ) -> Iterator[tuple[Recipe, dict[str, Any], tuple[int, ...], str]]:
        """Yields (recipe, axis values, micro-batches, point's name) for everything that the space names on
        `num_devices` (None: any number), meaningful or not, including further degrees within `reach`.
        """
        if self.points:
            shared = {axis: values[0] for axis, values in self.axes.items()}
            for recipe, point in itertools.product(self.recipes, self.points):
                changed = dataclasses.replace(recipe, **point.recipe)
                yield changed, {**shared, **point.layout}, (point.micro_batch,), point.name
            return
        for recipe in self.recipes:
            every = (self.axes, {**self.axes, **self.model_parallel}, *({**self.axes, **v} for v in self.variations))
            if num_devices is not None:
                every = (with_divisors(named, recipe, num_devices, reach, self.chosen) for named in every)
            axes, splitting, *varied = every
            for values in _product(axes):
                yield recipe, values, self.micro_batches, ""
            for values in itertools.chain.from_iterable(map(_product, varied)):
                if may_run(recipe, values, num_devices):
                    yield recipe, values, self.micro_batches, ""
            if not self.model_parallel or (num_devices or self.model_parallel_from) < self.model_parallel_from:
                continue
            for values in _product(splitting):
                if splits_model(values, num_devices):
                    yield recipe, values, self.micro_batches, ""


def _product(axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yields every combination of these axes' values, the first axis varying slowest."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _fixed(point: Point) -> set[str]:
    return {*point.recipe, *point.layout}
