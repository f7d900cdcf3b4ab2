"""The problem of a searcher: its candidates, and the knowledge before any measurement."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from platform.cost_model.columns import Columns
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint


class Choice(Protocol):
    """A choice of a searcher: a `Candidate`, or a recorded result."""

    @property
    def key(self) -> str:
        """Identifies the choice."""
        ...

    @property
    def axes(self) -> Mapping[str, Any]:
        """Value by axis, with the same axes in all choices of a problem; only choices of the same "recipe" compete."""
        ...

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Rungs that a trial may climb, ascending."""
        ...

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks; where rungs differ in it, the number for which their step times
        are compared. Choices that compete have the same number.
        """
        ...


class Observation(Protocol):
    """The part of a measurement that a searcher reads."""

    @property
    def outcome(self) -> Outcome: ...
    @property
    def batch(self) -> BatchPoint: ...
    @property
    def tokens_per_s(self) -> float | None: ...
    @property
    def peak_allocated_gib(self) -> float | None: ...
    @property
    def utilization_pct(self) -> float | None: ...
    @property
    def micro_step_s(self) -> float | None:
        """Seconds that a further micro-step adds to the step; None where steps were timed as a whole."""
        ...


C = TypeVar("C", bound=Choice)

TRIED = "every layout of the space was tried"
RECIPE = "recipe"
"""The axis that separates competitors: only points with the same value compete."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrialCosts:
    """Device seconds of a trial: devices x (start + rungs x (seconds + steps x step time)). They are estimates."""

    num_devices: int = 1
    start_s: float = 18.0
    rung_s: float = 10.0
    steps: float = 0.0
    device: str = "GPU"
    """The name of a device in sentences."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Earlier(Generic[C]):
    """An earlier study's measurements of one layout, in the space or not: they inform predictions and
    settle no rung.
    """

    candidate: C
    """The layout with the measured rungs."""
    results: tuple[Observation, ...]
    """One result for each rung."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Problem(Generic[C]):
    """Candidates with the knowledge of them before any measurement."""

    candidates: Sequence[C]
    seed: int = 0
    columns: Columns | None = None
    """Rows for the cost model: one for each rung of each candidate, then of `earlier` and of `others`, in order; None
    where the cost model does not know the devices.
    """
    costs: TrialCosts = TrialCosts()
    compile_s: Sequence[float] = ()
    """Seconds of each candidate's trial beyond `costs.start_s`, as where a whole model is compiled; empty for none."""
    tokens: float | None = None
    """Tokens of the planned run: a search continues as long as it pays off over them. None: until no candidate is left.
    """
    earlier: Sequence[Earlier[C]] = ()
    """Earlier measurements of the same devices and recipes. A searcher that does not learn from other studies ignores
    them.
    """
    others: Sequence[Sequence[C]] = ()
    """Candidates of each other search of the same command, as on another number of devices: none is suggested, and
    what is measured of them informs predictions.
    """

    @property
    def rows(self) -> tuple[C, ...]:
        """Candidates, then those of `earlier` and of `others`, in the order of the columns."""
        others = (candidate for several in self.others for candidate in several)
        return (*self.candidates, *(earlier.candidate for earlier in self.earlier), *others)


def stacked(several: Sequence[Columns]) -> Columns:
    """Returns the rows of several columns, one after another."""
    arrays = [columns.arrays() for columns in several]
    rows = [columns.shape for columns in several]
    return Columns.of(
        {
            name: np.concatenate([np.broadcast_to(of[name], shape) for of, shape in zip(arrays, rows, strict=True)])
            for name in arrays[0]
        }
    )
