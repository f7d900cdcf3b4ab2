"""Layouts and routing that a space tries for models with experts."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from search_spaces.space import Space
from search_spaces.variations import BESIDE_FASTEST
from trainers.spec.expert_rules import has_grouped_sizes


def with_experts(space: Space) -> Space:
    """Returns the space with layouts for the experts of its model; unchanged if the model has none.

    It tries grouped products in every combination; and with the likely fastest attention the uncompiled loop over
    experts, and expert parallelism. Routing is balanced by force, because initial weights send most tokens to a few
    experts.
    """
    model = space.recipe.model
    if not model.num_experts:
        return space
    grouped = has_grouped_sizes(model)
    eager: dict[str, Any] = {
        "attention": space.axes["attention"][:1],
        "compile": ("none",),
        "loss": space.axes["loss"][:1],
    }
    return dataclasses.replace(
        space,
        recipe=dataclasses.replace(space.recipe, routing="balanced"),
        axes={**space.axes, "experts": ("grouped" if grouped else "loop",)},
        variations=(*space.variations, {**eager, "experts": ("loop",)}, *(_shared_out(eager) if grouped else ())),
        narrowed={**space.narrowed, "experts": BESIDE_FASTEST, "ep": BESIDE_FASTEST},
    )


def _shared_out(values: Mapping[str, tuple[Any, ...]]) -> tuple[dict[str, tuple[Any, ...]], ...]:
    """Returns `Space.variations` with expert parallelism and these values of other axes: alone, with prefetched blocks,
    and with pipeline stages.
    """
    apart = {**values, "compile": ("block", "none"), "experts": ("grouped",), "ep": (2, 4, 8)}
    return (apart, {**apart, "prefetch": (1,)}, {**apart, "pp": (2, 4, 8)})
