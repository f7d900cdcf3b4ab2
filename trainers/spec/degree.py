"""`Degree`: declares an axis that is a number of ranks, by the object that these ranks divide.

Labels, tables, `--set`, the numbering of ranks, spaces, rules and the cost model read the declarations in
`trainers/spec/layout_axes.py`, so that no other code spells the degrees' names.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from trainers.spec.axis import Axis, axis
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
