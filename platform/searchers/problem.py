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
    def key(self) -> str: ...

    @property
    def axes(self) -> Mapping[str, Any]:
        """Values by axis; all choices of a problem have the same axes. Only those with the same "recipe" compete."""
        ...

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Rungs that a trial may climb, ascending."""
        ...

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks, equal for competing choices. If rungs differ, the number of
        tokens for which their step times are compared.
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
    def ran_out_on_host(self) -> bool:
        """Whether host memory ran out under a layout with states there, which says nothing about the device's."""
        ...

    @property
    def micro_step_s(self) -> float | None:
        """Seconds that a further micro-step adds to the step; None if steps were timed as a whole."""
        ...


C = TypeVar("C", bound=Choice)

TRIED = "every layout of the space was tried"
RECIPE = "recipe"
"""The axis that separates competitors: only points with the same value compete."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrialCosts:
    """Estimated device seconds of a trial: devices x (start + rungs x (seconds + steps x step time))."""

    num_devices: int = 1
    start_s: float = 18.0
    rung_s: float = 10.0
    steps: float = 0.0
    device: str = "GPU"
    """Word for a device in sentences."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Earlier(Generic[C]):
    """An earlier study's measurements of any one layout; they inform predictions and settle no rung."""

    candidate: C
    """The layout with the measured rungs."""
    results: tuple[Observation, ...]
    """One result for each rung."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Problem(Generic[C]):
    """The candidates with the knowledge of them before any measurement."""

    candidates: Sequence[C]
    seed: int = 0
    columns: Columns | None = None
    """Rows for the cost model: one for each rung of each candidate, then of `earlier` and of `others`, in order; None
    if the cost model does not know the devices.
    """
    stands_in: bool = False
    """Whether `columns` are those of models that stand in for a user's own training: their memory is not its own."""
    costs: TrialCosts = TrialCosts()
    compile_s: Sequence[float] = ()
    """Seconds of each candidate's trial beyond `costs.start_s`, such as to compile a whole model; may be empty."""
    tokens: float | None = None
    """Tokens of the planned run, over which a search must pay off. None: it runs until no candidate is left."""
    earlier: Sequence[Earlier[C]] = ()
    """Earlier measurements of the same devices and recipes; some searchers ignore them."""
    others: Sequence[Sequence[C]] = ()
    """Candidates of each other search of the same command, for another number of devices. They are never suggested;
    their measurements inform predictions.
    """

    @property
    def rows(self) -> tuple[C, ...]:
        """Candidates, then those of `earlier` and of `others`, in the order of the columns."""
        others = (candidate for several in self.others for candidate in several)
        return (*self.candidates, *(earlier.candidate for earlier in self.earlier), *others)


def stacked(several: Sequence[Columns]) -> Columns:
    arrays = [columns.arrays() for columns in several]
    rows = [columns.shape for columns in several]
    return Columns.of(
        {
            name: np.concatenate([np.broadcast_to(of[name], shape) for of, shape in zip(arrays, rows, strict=True)])
            for name in arrays[0]
        }
    )
