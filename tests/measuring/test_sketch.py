"""Sketches of a tensor in parts are those of the whole, whatever cuts it, and tell how far two tensors are apart."""

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch

from trainers.distributed.state import StateTensor, TensorPart, flat_range, whole_tensor
from trainers.measuring import sketch
from trainers.measuring.sketch import KEPT, length, sketches

SHAPE = (37, 53)
WHOLE = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))


def sketched(tensors: Sequence[StateTensor], names: Sequence[str] = ("w",)) -> torch.Tensor:
    """Returns the sum of the sketches of what each rank holds."""
    states = [dict.fromkeys(names, tensor) for tensor in tensors]
    cpu = torch.device("cpu")
    return torch.stack([sketches(names, [state], lambda values: values, cpu) for state in states]).sum(0)


def rows(parts: int) -> list[StateTensor]:
    firsts = [0, *itertools.accumulate(len(chunk) for chunk in WHOLE.chunk(parts))]
    return [
        StateTensor(shape=SHAPE, parts=(TensorPart(offsets=(first, 0), tensor=chunk),))
        for first, chunk in zip(firsts, WHOLE.chunk(parts), strict=False)
    ]


def columns() -> list[StateTensor]:
    """Returns the parts of two ranks, of which each has columns of two stacked matrices."""
    halves = [((0, 20), (30, 53)), ((20, 30),)]
    return [
        StateTensor(
            shape=SHAPE,
            parts=tuple(TensorPart(offsets=(0, first), tensor=WHOLE[:, first:stop]) for first, stop in boxes),
        )
        for boxes in halves
    ]


def flat() -> list[StateTensor]:
    """Returns the parts of three ranks that cut the flat tensor inside its rows."""
    cuts = [0, 100, 1111, WHOLE.numel()]
    values = WHOLE.flatten()
    return [flat_range(SHAPE, first, values[first:stop]) for first, stop in itertools.pairwise(cuts)]


def replicas() -> list[StateTensor]:
    return [whole_tensor(WHOLE, replica=replica, num_replicas=3) for replica in range(3)]


@pytest.mark.parametrize("cut", [lambda: rows(4), columns, flat, replicas])
@pytest.mark.parametrize("piece", [2**22, 60])
def test_the_sketches_of_parts_add_up_to_that_of_the_whole(
    cut: Callable[[], list[StateTensor]], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sketched([whole_tensor(WHOLE)])
    monkeypatch.setattr(sketch, "PIECE_VALUES", piece)
    assert torch.allclose(sketched(cut()), expected, atol=1e-9)


def test_lengths_are_estimated_and_squares_are_exact() -> None:
    uncut = sketched([whole_tensor(WHOLE)])
    assert float(length(uncut)) == pytest.approx(float(WHOLE.norm()), rel=0.25)
    assert float(uncut[0, KEPT]) == pytest.approx(float(WHOLE.double().square().sum()))


def test_a_sketch_is_linear_and_tells_one_value_and_one_row_apart() -> None:
    row, value = WHOLE.clone(), WHOLE.clone()
    row[5] *= -1.0
    value[3, 4] += 7.0
    for changed in (row, value):
        difference = length(sketched([whole_tensor(changed)]) - sketched([whole_tensor(WHOLE)]))
        assert float(difference) == pytest.approx(float((changed - WHOLE).norm()), rel=0.35)


def test_parameters_of_one_shape_have_signs_of_their_own() -> None:
    first, other = sketched([whole_tensor(WHOLE)], ("a", "b"))
    assert not torch.allclose(first, other)
