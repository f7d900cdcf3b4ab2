"""Sums the seconds of a device's time line by kind. Overlaps count once, so the parts add up to the wall time."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

Kind = Literal["matmul", "attention", "loss", "optimizer", "other", "communication"]
Axis = Literal["tp", "cp", "ep", "pp", "dp"]
"""Mesh axes along which ranks communicate; "dp" stands for all kinds of data parallelism."""

AXES: tuple[Axis, ...] = ("tp", "cp", "ep", "pp", "dp")
"""Order of axes: when only communication along several axes runs, the time counts for the first one."""

COMPUTE: tuple[Kind, ...] = ("matmul", "attention", "loss", "optimizer", "other")
"""Order of kinds: when several run at once, on different streams, the time counts for the first one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Busy:
    """Work from `start_s` to `end_s` on the device, or on a CPU worker."""

    start_s: float
    end_s: float
    kind: Kind
    axis: Axis = "dp"
    """Mesh axis of communication."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """Seconds by kind. All but `communication_hidden_s` and the parts of exposed communication add up to `wall_s`."""

    matmul_s: float = 0.0
    """Products with weights, without the head's."""
    attention_s: float = 0.0
    """Scores, softmax and values: everything between attention's products with weights."""
    loss_s: float = 0.0
    """The head's products and the cross-entropy."""
    optimizer_s: float = 0.0
    """Clipping, the step and clearing gradients."""
    other_s: float = 0.0
    """Norms, activations, embeddings, residual sums, casts and copies."""
    communication_exposed_s: float = 0.0
    """Communication while no computation ran."""
    idle_s: float = 0.0
    """Time in which nothing ran."""
    communication_hidden_s: float = 0.0
    """Communication that overlaps computation."""
    exposed_tp_s: float = 0.0
    """Exposed communication of tensor-parallel groups."""
    exposed_cp_s: float = 0.0
    """Exposed communication of context-parallel groups."""
    exposed_ep_s: float = 0.0
    """Exposed communication of expert-parallel groups; a rank that waits for one with more rows counts as receiving."""
    exposed_pp_s: float = 0.0
    """Exposed communication between pipeline stages; a stage that waits for another, as in the bubble, counts as
    receiving.
    """
    exposed_dp_s: float = 0.0
    """All other exposed communication: gradients, shards of parameters, norms."""

    @property
    def wall_s(self) -> float:
        return self.compute_s + self.optimizer_s + self.communication_exposed_s + self.idle_s

    @property
    def compute_s(self) -> float:
        """Seconds of computation without the optimizer."""
        return self.matmul_s + self.attention_s + self.loss_s + self.other_s

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(**{name: getattr(self, name) + getattr(other, name) for name in FIELDS})

    def times(self, factor: float) -> "Sums":
        return Sums(**{name: factor * getattr(self, name) for name in FIELDS})


FIELDS = tuple(field.name for field in dataclasses.fields(Sums))


def sum_between(busy: Iterable[Busy], start_s: float, end_s: float) -> Sums:
    """Returns the sums of the work from `start_s` to `end_s`; pieces are cut at both."""
    marks: list[tuple[float, int, Busy]] = []
    for piece in busy:
        first, last = max(piece.start_s, start_s), min(piece.end_s, end_s)
        if last > first:
            marks.append((first, 1, piece))
            marks.append((last, -1, piece))
    marks.sort(key=lambda mark: mark[0])
    sums: dict[str, float] = dict.fromkeys(FIELDS, 0.0)
    running, talking = Counter[Kind](), Counter[Axis]()
    before_s = start_s
    for at_s, change, piece in marks:
        span_s = at_s - before_s
        if span_s > 0:
            compute = next((kind for kind in COMPUTE if running[kind]), None)
            axis = next((name for name in AXES if talking[name]), None)
            if compute is not None:
                sums[f"{compute}_s"] += span_s
                sums["communication_hidden_s"] += span_s if axis is not None else 0.0
            elif axis is not None:
                sums["communication_exposed_s"] += span_s
                sums[f"exposed_{axis}_s"] += span_s
            else:
                sums["idle_s"] += span_s
        if piece.kind == "communication":
            talking[piece.axis] += change
        else:
            running[piece.kind] += change
        before_s = at_s
    sums["idle_s"] += max(0.0, end_s - before_s)
    return Sums(**sums)


def mean(several: Sequence[Sums]) -> Sums:
    """Returns the mean of one or more sums."""
    return sum(several[1:], several[0]).times(1 / len(several))


def whole_step(micro_steps: Sequence[Sums], optimizer: Sums, grad_accum: int) -> Sums:
    """Returns a step of `grad_accum` micro-steps from the sums of a shorter step, as `ladder.step_time_s` derives it:
    the first and the last micro-step once, the mean of the others as often as needed.

    Raises:
        ValueError: more micro-steps are needed, and there is none between the first and the last.
    """
    if grad_accum == len(micro_steps):
        return sum(micro_steps, optimizer)
    if len(micro_steps) < 3:
        raise ValueError(f"a step of {grad_accum} micro-steps is derived from 3 at least, got {len(micro_steps)}")
    middle = mean(micro_steps[1:-1]).times(grad_accum - 2)
    return micro_steps[0] + middle + micro_steps[-1] + optimizer
