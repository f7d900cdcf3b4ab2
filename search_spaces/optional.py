"""Adds kernels of optional packages to a space."""

import dataclasses

from search_spaces.space import Space
from trainers.spec.optional_kernels import installed_values


def with_installed(space: Space, *axes: str) -> Space:
    """Returns the space with the installed optional kernels of these axes added after its own values, so that the
    plainer kernel comes first where predictions are equal.
    """
    values = {axis: (*space.axes[axis], *installed_values(axis)) for axis in axes}
    return dataclasses.replace(space, axes={**space.axes, **values}, optional_axes=axes)
