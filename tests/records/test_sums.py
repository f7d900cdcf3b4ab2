"""The arithmetic of a time line: whatever overlaps, the parts add up to the wall time."""

import random

import pytest

from trainers.records.sums import AXES, COMPUTE, FIELDS, Axis, Busy, Kind, Sums, sum_between, whole_step
from trainers.spec.layout_axes import DEGREES

KINDS: tuple[Kind, ...] = (*COMPUTE, "communication")


def busy(kind: Kind, start_s: float, end_s: float, axis: Axis = "dp") -> Busy:
    return Busy(start_s=start_s, end_s=end_s, kind=kind, axis=axis)


def by_millisecond(pieces: list[Busy], start: int, end: int) -> dict[str, int]:
    """Returns the same sums computed the slow way, each millisecond by itself."""
    sums = dict.fromkeys(FIELDS, 0)
    for moment in range(start, end):
        at_once = [piece for piece in pieces if piece.start_s <= moment < piece.end_s]
        kinds = {piece.kind for piece in at_once}
        compute = next((kind for kind in COMPUTE if kind in kinds), None)
        if compute is not None:
            sums[f"{compute}_s"] += 1
            sums["communication_hidden_s"] += "communication" in kinds
        else:
            sums["communication_exposed_s" if "communication" in kinds else "idle_s"] += 1
            axes = {piece.axis for piece in at_once}
            for axis in [ranked_axis for ranked_axis in AXES if ranked_axis in axes][:1]:
                sums[f"exposed_{axis}_s"] += 1
    return sums


@pytest.mark.parametrize("seed", range(40))
def test_any_time_line_adds_up(seed: int) -> None:
    draw = random.Random(seed)
    pieces: list[Busy] = []
    for _ in range(draw.randrange(40)):
        start = draw.randrange(100)
        pieces.append(busy(draw.choice(KINDS), start, start + draw.randrange(20), draw.choice(AXES)))
    start, end = sorted(draw.sample(range(120), 2))
    sums = sum_between(pieces, start, end)
    assert {name: getattr(sums, name) for name in FIELDS} == by_millisecond(pieces, start, end)
    assert sums.wall_s == end - start
    assert sum(getattr(sums, f"exposed_{axis}_s") for axis in AXES) == sums.communication_exposed_s


def test_each_degree_that_cuts_a_model_has_its_seconds() -> None:
    assert {*AXES} == {"dp"} | {name for name, degree in DEGREES.items() if degree.cuts != "samples"}


def test_communication_is_hidden_only_beside_compute() -> None:
    sums = sum_between([busy("communication", 1, 5), busy("matmul", 3, 4), busy("matmul", 3.5, 6)], 0, 8)
    expected = Sums(matmul_s=3, communication_exposed_s=2, communication_hidden_s=2, idle_s=3, exposed_dp_s=2)
    assert sums == expected


def test_communication_along_two_axes_at_once_counts_once() -> None:
    pieces = [busy("communication", 0, 4, "pp"), busy("communication", 2, 6, "tp"), busy("communication", 5, 9, "dp")]
    sums = sum_between(pieces, 0, 10)
    parts = {"exposed_pp_s": 2, "exposed_tp_s": 4, "exposed_dp_s": 3}
    assert sums == Sums(communication_exposed_s=9, idle_s=1, **parts)


def test_two_streams_are_one_device() -> None:
    sums = sum_between([busy("other", 0, 4), busy("attention", 2, 6), busy("optimizer", 5, 7)], 0, 7)
    assert sums == Sums(other_s=2, attention_s=4, optimizer_s=1)


def test_a_whole_step_has_the_middle_as_often_as_it_takes() -> None:
    first, middle, last = Sums(matmul_s=5), Sums(matmul_s=3, idle_s=1), Sums(matmul_s=3, communication_exposed_s=2)
    step = whole_step([first, middle, last], Sums(optimizer_s=7), 10)
    assert step == Sums(matmul_s=5 + 8 * 3 + 3, idle_s=8, communication_exposed_s=2, optimizer_s=7)
    assert whole_step([first, last], Sums(optimizer_s=7), 2) == first + last + Sums(optimizer_s=7)
    with pytest.raises(ValueError, match="from 3 at least, got 2"):
        whole_step([first, last], Sums(), 4)
