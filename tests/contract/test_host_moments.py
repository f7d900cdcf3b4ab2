"""Moments in host memory: the weights and moments of torch's fused AdamW, bit for bit, however slices are cut."""

# pyright: reportPrivateUsage=false

import contextlib
import itertools
import weakref
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from trainers.engines import host_moments
from trainers.engines.host_moments import HostMomentsAdamW, offload_in_effect

SHAPES = ((97, 32), (7,), (0, 4), (1,), (333,), (130, 131), (5, 3, 11), (64,))
UNUSED = 3
"""Index of the parameter that has no gradient in one step."""
STEPS = 5
SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Makes the CPU's kernel round alike: with several threads it cuts tensors at other places."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _groups(dtype: torch.dtype) -> list[dict[str, Any]]:
    drawn = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=drawn).to(dtype)) for shape in SHAPES]
    return [
        {"params": [parameter for parameter in parameters if (parameter.dim() > 1) is matrices], "weight_decay": decay}
        for matrices, decay in ((True, 0.1), (False, 0.0))
    ]


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _trained(optimizer: torch.optim.Optimizer) -> None:
    """Steps on drawn gradients at a changing rate; in the third step one parameter has no gradient."""
    drawn = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = SETTINGS["lr"] * (step + 1)
        for index, parameter in enumerate(_parameters(optimizer)):
            gradient = torch.randn(parameter.shape, generator=drawn).to(parameter.dtype)
            parameter.grad = None if (step, index) == (2, UNUSED) else gradient
        optimizer.step()


def _equal(first: torch.optim.Optimizer, second: torch.optim.Optimizer) -> list[bool]:
    """Returns whether each weight and state of two optimizers has the same bits."""
    return [
        torch.equal(one, other)
        for mine, its in zip(_parameters(first), _parameters(second), strict=True)
        for one, other in (
            (mine, its),
            *(
                (first.state[mine][key], second.state[its][key])
                for key in ("step", "exp_avg", "exp_avg_sq")
                if len(mine)
            ),
        )
    ]


def _pair(dtype: torch.dtype, slice_values: int) -> tuple[torch.optim.AdamW, HostMomentsAdamW]:
    plain = torch.optim.AdamW(_groups(dtype), **SETTINGS, fused=True)
    return plain, HostMomentsAdamW(_groups(dtype), **SETTINGS, slice_values=slice_values)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("slice_values", (64, 1000, host_moments.SLICE_VALUES))
def test_weights_and_moments_have_the_bits_of_torchs_fused_adamw(slice_values: int, dtype: torch.dtype) -> None:
    plain, away = _pair(dtype, slice_values)
    for optimizer in (plain, away):
        _trained(optimizer)
    assert all(_equal(plain, away))
    assert offload_in_effect(away) == "moments"
    assert offload_in_effect(plain) == "none"


def test_slices_cover_each_value_once_and_stay_small() -> None:
    away = _pair(torch.float32, 1000)[1]
    num_values = sum(parameter.numel() for parameter in _parameters(away))
    covered = {id(parameter): [0] * parameter.numel() for parameter in _parameters(away)}
    for moment_slice in away.slices:
        assert moment_slice.moments[0].numel() <= 1024
        for piece in moment_slice.pieces:
            for place in range(piece.first, piece.last):
                covered[id(piece.parameter)][place] += 1
    assert set(itertools.chain(*covered.values())) == {1}
    # A model of one slice would need more room for three staged slices than its moments take.
    small = _pair(torch.float32, host_moments.SLICE_VALUES)[1]
    assert small.staging.buffers.numel() < 2 * num_values / 2


def test_a_slice_that_is_not_copied_back_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, away = _pair(torch.float32, 1000)
    staged = host_moments.Staging.staged

    @contextlib.contextmanager
    def forgetful(self: Any, number: int, moments: Any) -> Generator[Any, None, None]:
        kept = [moment.clone() for moment in moments] if number == 2 else moments
        with staged(self, number, kept) as buffers:
            yield buffers

    monkeypatch.setattr(host_moments.Staging, "staged", forgetful)
    for optimizer in (plain, away):
        _trained(optimizer)
    assert not all(_equal(plain, away))


def test_moments_written_between_steps_are_used() -> None:
    plain, away = _pair(torch.float32, 1000)
    for optimizer in (plain, away):
        _trained(optimizer)
        for state in optimizer.state.values():
            state["exp_avg"].mul_(3)
            state["step"].fill_(1)
        _trained(optimizer)
    assert all(_equal(plain, away))


def test_parameters_of_two_types_are_refused() -> None:
    parameters = [nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
    with pytest.raises(ValueError, match="one type and device"):
        HostMomentsAdamW([{"params": parameters}], **SETTINGS)


def test_host_memory_that_the_system_does_not_give_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match=r"^4194304\.0 GiB of .* cannot be pinned \(Cannot allocate memory\)"):
        host_moments._PinnedMemory.of(2**52, torch.device("cuda"))


def test_released_moments_leave_host_memory() -> None:
    away = _pair(torch.float32, 1000)[1]
    _trained(away)
    moments = [weakref.ref(part) for moment_slice in away.slices for part in moment_slice.moments]
    away.release()
    assert not any(moment() is not None for moment in moments)
    assert not away.staging.buffers.untyped_storage().nbytes()
