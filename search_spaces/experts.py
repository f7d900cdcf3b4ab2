"""What a space tries of a model with experts."""

import dataclasses
from typing import Any

from search_spaces.space import Space
from search_spaces.variations import BESIDE_FASTEST
from trainers.spec.expert_rules import has_grouped_sizes


def with_experts(space: Space) -> Space:
    """Returns the space as it is where its model has no experts. Else it tries grouped products in every combination,
    and the loop over experts, which nothing compiles, beside the likely fastest attention; under forced balance, since
    first weights send most tokens to a few experts.
    """
    model = space.recipe.model
    if not model.num_experts:
        return space
    loop: dict[str, Any] = {
        "attention": space.axes["attention"][:1],
        "compile": ("none",),
        "loss": space.axes["loss"][:1],
        "experts": ("loop",),
    }
    return dataclasses.replace(
        space,
        recipe=dataclasses.replace(space.recipe, routing="balanced"),
        axes={**space.axes, "experts": ("grouped" if has_grouped_sizes(model) else "loop",)},
        variations=(*space.variations, loop),
        narrowed={**space.narrowed, "experts": BESIDE_FASTEST},
    )
