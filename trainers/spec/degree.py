"""`Degree`: declares an axis that is a number of ranks, by what these share out among them.

Labels, tables, `--set`, the numbering of ranks, spaces, rules and the cost model take degrees from the declarations
in `trainers/spec/layout_axes.py`; none spells their names.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from trainers.spec.axis import Axis, axis
from trainers.spec.recipe import Recipe

Cut = Literal["samples", "tokens", "width", "depth", "experts"]
"""A batch's sequences, a sequence's tokens, the width of layers, the blocks of a model, the experts of a block."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Degree(Axis):
    """The declaration of one degree."""

    cuts: Cut
    """Its ranks share this out."""
    place: int
    """Place of its ranks in the mesh: ranks of the smallest are neighbours; equal ones stand in declaration's order."""
    multiplies: bool = True
    """Whether the number of all ranks is a multiple of it; else it groups ranks that other degrees number already."""
    stays_in_node: bool = False
    """Whether its groups leave a node only where `--set`, a layout's file or a named point asks for it."""
    sizes: Callable[[Recipe], Iterable[tuple[int, str]]] = lambda _: ()
    """Returns (size, what it counts) of all in a model that it must divide, besides the tokens of a sequence."""
    largest: Callable[[Recipe], float] = lambda _: math.inf
    """Returns the largest degree that can cut the model."""
    pieces: int = 1
    """Pieces of a sequence that each of its ranks has."""
    tried: tuple[int, ...] = ()
    """Values that spaces of any model try."""
    worth: Callable[[Recipe], float] = lambda _: math.inf
    """Returns the largest degree that a space adds to those which it names."""

    def undivided(self, recipe: Recipe, degree: int) -> Iterator[str]:
        """Yields what that degree, with no other beside it, does not divide of `recipe`."""
        yield from (counted for size, counted in self.sizes(recipe) if size % degree)
        if self.cuts == "tokens" and degree > 1 and recipe.seq_len % (self.pieces * degree):
            yield "sequence"

    def divides(self, recipe: Recipe, degree: int) -> bool:
        """Returns whether `recipe` can be cut by that degree, with no other beside it."""
        return degree <= self.largest(recipe) and not any(self.undivided(recipe, degree))


def degree(**declared: Any) -> Any:
    """Returns the field of a degree, which is 1 by default; `declared` are the fields of its `Degree`."""
    return axis(1, kind=Degree, column="degrees", least=1, **declared)
