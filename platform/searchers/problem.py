"""What a searcher is asked: what may be tried, and what is known beforehand."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from platform.cost_model.columns import Columns
from trainers.values.batch import BatchPoint
from trainers.values.measurement import Outcome


class Choice(Protocol):
    """What a searcher picks from: a `Candidate`, or a recorded result."""

    @property
    def key(self) -> str:
        """What tells two choices apart."""
        ...

    @property
    def axes(self) -> Mapping[str, Any]:
        """Axis -> value, the same axes in all choices of a problem; "recipe" tells what competes."""
        ...

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Rungs that a trial may climb, ascending."""
        ...

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step, over all ranks; where rungs differ in these, as many as step times are held
        against each other for. The same in all choices that compete.
        """
        ...


class Result(Protocol):
    """What a searcher reads of a measurement."""

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


C = TypeVar("C", bound=Choice)

TRIED = "every layout of the space was tried"
RECIPE = "recipe"
"""The axis that tells what competes: points of one value."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Device seconds of a trial: devices x (start + rungs x (seconds + steps x step time)). Estimates."""

    num_devices: int = 1
    start_s: float = 18.0
    rung_s: float = 10.0
    steps: float = 0.0
    device: str = "GPU"
    """What a device is called."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Earlier(Generic[C]):
    """What an earlier study measured of one layout, in the space or not: it teaches, and settles nothing."""

    candidate: C
    """With the rungs that were measured."""
    results: tuple[Result, ...]
    """One for each of them."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Problem(Generic[C]):
    """Candidates with what is known of them before anything is measured."""

    candidates: Sequence[C]
    seed: int = 0
    columns: Columns | None = None
    """A row for each rung of each candidate, then of each of `earlier`, in order, for the cost model; None where it
    does not know the devices."""
    costs: Costs = Costs()
    tokens: float | None = None
    """Of the planned run: a search goes on as long as it pays over these. None: until nothing is left."""
    earlier: Sequence[Earlier[C]] = ()
    """Of the same devices and recipes. A searcher that learns nothing from others' trials passes it over."""

    @property
    def rows(self) -> tuple[C, ...]:
        """Candidates, then those of `earlier`: in the order of the columns."""
        return (*self.candidates, *(each.candidate for each in self.earlier))
