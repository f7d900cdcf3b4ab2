"""Adds kernels of optional packages to a space."""

import dataclasses

from search_spaces.space import Space
from trainers.kernels.optional import installed_values


def with_installed(space: Space, *axes: str) -> Space:
    """Returns the space that tries the installed optional kernels of these axes first, before its own values."""
    values = {axis: (*installed_values(axis), *space.axes[axis]) for axis in axes}
    return dataclasses.replace(space, axes={**space.axes, **values}, optional_axes=axes)
