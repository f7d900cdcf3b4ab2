"""`Degree`: declares an axis that is a number of ranks, by the object that these ranks divide.

Labels, tables, `--set`, the numbering of ranks, spaces, rules and the cost model read the declarations in
`trainers/spec/layout_axes.py`, so that no other code spells the degrees' names.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

from trainers.spec.axis import Axis, AxisValues, axes_of, axis
from trainers.spec.recipe import Recipe

Cut = Literal["samples", "tokens", "width", "depth", "experts"]
"""Object that ranks divide: a batch's sequences, a sequence's tokens, the layers' width, the model's blocks, or a
block's experts.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Degree(Axis):
    """The declaration of one degree."""

    cuts: Cut
    """Object that its ranks divide."""
    place: int
    """Position of its ranks in the mesh: ranks of the smallest `place` are neighbours; equal places keep the order of
    declaration.
    """
    multiplies: bool = True
    """Whether it multiplies the number of ranks; otherwise it groups ranks that other degrees number."""
    stays_in_node: bool = False
    """Whether its groups stay within a node unless `--set`, a layout's file or a named point asks for more."""
    sizes: Callable[[Recipe], Iterable[tuple[int, str]]] = lambda _: ()
    """Returns (size, name) of each size of the model that the degree must divide, besides a sequence's tokens."""
    largest: Callable[[Recipe], float] = lambda _: math.inf
    """Returns the largest degree into which the model can be cut."""
    pieces: int = 1
    """Pieces of a sequence that each of its ranks holds."""
    tried: tuple[int, ...] = ()
    """Values that every space tries."""
    worth: Callable[[Recipe], float] = lambda _: math.inf
    """Returns the largest degree that a space adds to the values in `tried`."""

    def undivided(self, recipe: Recipe, degree: int) -> Iterator[str]:
        """Yields each quantity of `recipe` that `degree`, alone in the mesh, does not divide."""
        yield from (counted for size, counted in self.sizes(recipe) if size % degree)
        if self.cuts == "tokens" and degree > 1 and recipe.seq_len % (self.pieces * degree):
            yield "sequence"

    def divides(self, recipe: Recipe, degree: int) -> bool:
        """Returns whether `degree`, alone in the mesh, can cut `recipe`."""
        return degree <= self.largest(recipe) and not any(self.undivided(recipe, degree))


def degree(**declared: Any) -> Any:
    """Returns the dataclass field of a degree, 1 by default; `declared` are the fields of its `Degree`."""
    return axis(1, kind=Degree, column="degrees", least=1, **declared)


@functools.cache
def degrees_of(kind: type) -> Mapping[str, Degree]:
    """Returns the declaration of every degree of a dataclass by name, in the order of its fields."""
    return {name: declared for name, declared in axes_of(kind).items() if isinstance(declared, Degree)}


@functools.cache
def cutting(kind: type) -> Mapping[Cut, tuple[str, ...]]:
    """Returns a dataclass's degrees by the object that their ranks divide."""
    degrees = degrees_of(kind).items()
    return {cut: tuple(name for name, declared in degrees if declared.cuts == cut) for cut in get_args(Cut)}


@functools.cache
def placed(kind: type) -> tuple[str, ...]:
    """Returns all degrees of a dataclass, outermost first: the ranks of a tensor-parallel group are neighbours."""
    degrees = degrees_of(kind)
    return tuple(sorted(degrees, key=lambda name: -degrees[name].place))


@functools.cache
def mesh_axes(kind: type) -> tuple[str, ...]:
    """Returns the axes of the mesh, which number the ranks; the other degrees group ranks that these axes number."""
    return tuple(name for name in placed(kind) if degrees_of(kind)[name].multiplies)


class DegreeValues(AxisValues):
    """Base class of a dataclass some of whose axes are degrees: the ranks that these number."""

    @functools.cached_property
    def data_parallel(self) -> int:
        """Number of ranks with different sequences."""
        return self.product(cutting(type(self))["samples"])

    @functools.cached_property
    def model_parallel(self) -> int:
        """Number of ranks that share one copy of the model and the same sequences."""
        return self.product(degrees_of(type(self)).keys() - cutting(type(self))["samples"])

    def product(self, degrees: Iterable[str]) -> int:
        """Returns the product of the given degrees that multiply the number of ranks."""
        return math.prod([getattr(self, name) for name in degrees if name in mesh_axes(type(self))])

    def parts(self, cut: Cut) -> int:
        """Returns the number of parts into which ranks divide `cut`."""
        return math.prod([getattr(self, name) for name in cutting(type(self))[cut]])

    def above_one(self, degrees: Iterable[str]) -> dict[str, int]:
        return {name: value for name in degrees if (value := getattr(self, name)) > 1}

    def in_words(self, degrees: Iterable[str]) -> str:
        return " x ".join(f"{name} {getattr(self, name)}" for name in degrees)

    @property
    def world_size(self) -> int:
        """Number of devices, the product of the degrees."""
        return self.data_parallel * self.model_parallel

    def coordinates(self, rank: int) -> dict[str, int]:
        """Returns the coordinate of global `rank` on each axis of `mesh_axes`; the innermost axis varies fastest."""
        axes, position = mesh_axes(type(self)), dict[str, int]()
        for name in reversed(axes):
            rank, position[name] = divmod(rank, getattr(self, name))
        return {name: position[name] for name in axes}
