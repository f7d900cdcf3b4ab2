"""Groups layouts that differ only in axes without an effect on the prediction, so that a plan's table shows one row."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from platform.cost_model.columns import Array
from platform.plan.planned import AS_FAST, Alike
from trainers.spec.axis import axes_of
from trainers.spec.layout import Layout


def distinct_rows(
    rows: npt.NDArray[np.int64], layouts: Sequence[Layout], figures: Array, limit: int
) -> Iterator[tuple[int, Alike]]:
    """Yields the first `limit` of `rows` with different predictions, each with the group of layouts like it.

    `figures` [points, figures] holds the predicted figures of each point. Two rows are alike if all figures agree and
    they differ in a single axis, or only in axes each of which changes nothing by itself.
    """
    remaining = rows
    for _ in range(limit):
        if not len(remaining):
            return
        first = int(remaining[0])
        is_equal = np.isclose(figures[remaining], figures[first], rtol=AS_FAST, atol=0.0).all(axis=1)
        is_left: npt.NDArray[np.bool_] = np.logical_not(is_equal)
        axes = set[str]()
        for place in np.flatnonzero(is_equal):
            other = layouts[int(remaining[place])]
            differing = {name for name in axes_of(Layout) if getattr(other, name) != getattr(layouts[first], name)}
            if len(differing) <= 1 or differing <= axes:
                axes |= differing
            else:
                is_left[place] = True
        yield (
            first,
            Alike(axes=tuple(name for name in axes_of(Layout) if name in axes), count=int((~is_left).sum()) - 1),
        )
        remaining = remaining[is_left]
