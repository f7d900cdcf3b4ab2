"""AdamW whose moments are in pinned host memory: slices of them pass through the device's step.

The moments of a parameter group are two flat tensors on the host, cut into slices of `SLICE_VALUES` values wherever a
parameter ends, so that a large table has many slices and many small tensors share one launch. A slice is copied to a
staging buffer on one stream, updated by torch's fused AdamW on the compute stream, and copied back on a third stream.
The kernel computes each value from its own weight, gradient and moments alone, so the weights have the bits of
`torch.optim.AdamW(fused=True)`.
"""

import contextlib
import mmap
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch

from trainers.spec.host_moments import LEAST_SLICES, SLICE_VALUES, STAGED_SLICES

_ALIGNED_VALUES = 64
"""Multiple of values at which a parameter or slice begins: kernels load vectors, and copies start at 128 bytes."""
_MOMENTS = ("exp_avg", "exp_avg_sq")


class SlicePiece(NamedTuple):
    """A range of a flattened parameter, whose moments begin at `offset` of their slice."""

    parameter: torch.Tensor
    first: int
    last: int
    offset: int


class MomentSlice(NamedTuple):
    """A slice of a parameter group: its pieces, and its flat moments on the host."""

    group: int
    pieces: tuple[SlicePiece, ...]
    moments: tuple[torch.Tensor, torch.Tensor]


class HostMomentsAdamW(torch.optim.AdamW):
    """torch's fused AdamW with `exp_avg` and `exp_avg_sq` in host memory, pinned beside a CUDA device. The steps taken
    stay on the device.

    All parameters have one type and device, and keep their sizes. A CPU copies slices too, without streams.

    Raises:
        ValueError: the parameters are of several types or devices.
        MemoryError: the host's memory cannot be pinned.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        slice_values: int = SLICE_VALUES,
    ) -> None:
        super().__init__(groups, lr=lr, betas=betas, eps=eps, fused=True)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
        if len(kinds) > 1:
            raise ValueError(f"moments in host memory need parameters of one type and device, got {kinds}")
        ((dtype, device),) = kinds
        least = sum(parameter.numel() for parameter in parameters) // LEAST_SLICES
        aligned = -(-max(1, min(slice_values, least)) // _ALIGNED_VALUES) * _ALIGNED_VALUES
        self.slices = tuple(self._sliced(aligned, dtype, device))
        largest = max((moment_slice.moments[0].numel() for moment_slice in self.slices), default=0)
        self.staging = (StreamedStaging if device.type == "cuda" else Staging)(largest, dtype, device)

    def _sliced(self, slice_values: int, dtype: torch.dtype, device: torch.device) -> Iterator[MomentSlice]:
        """Makes the states of all parameters and yields the slices, group by group."""
        for index, group in enumerate(self.param_groups):
            firsts, end = list[int](), 0
            for parameter in group["params"]:
                firsts.append(end)
                end += -(-parameter.numel() // _ALIGNED_VALUES) * _ALIGNED_VALUES
            first, second = (_host_zeros(end, dtype, device) for _ in _MOMENTS)
            slices: list[list[SlicePiece]] = [[] for _ in range(0, end, slice_values)]
            for parameter, begin in zip(group["params"], firsts, strict=True):
                num_values = parameter.numel()
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=device),
                    **{
                        name: flat[begin : begin + num_values].view(parameter.shape)
                        for name, flat in zip(_MOMENTS, (first, second), strict=True)
                    },
                }
                for number in range(begin // slice_values, -(-(begin + num_values) // slice_values)):
                    low = max(begin, number * slice_values)
                    high = min(begin + num_values, (number + 1) * slice_values)
                    if low < high:
                        slices[number].append(
                            SlicePiece(parameter, low - begin, high - begin, low - number * slice_values)
                        )
            for number, pieces in enumerate(slices):
                where = slice(number * slice_values, min((number + 1) * slice_values, end))
                yield MomentSlice(index, tuple(pieces), (first[where], second[where]))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Updates all parameters with a gradient. Returns before the device has: weights are ready on the current
        stream, the host's moments after `wait`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            stepped = [self.state[parameter]["step"] for parameter in group["params"] if parameter.grad is not None]
            if stepped:
                cast(Any, torch)._foreach_add_(stepped, 1)
        used = 0
        self.staging.begin()
        for moment_slice in self.slices:
            pieces = [piece for piece in moment_slice.pieces if piece.parameter.grad is not None]
            if not pieces:
                continue
            with self.staging.staged(used, moment_slice.moments) as moments:
                self._update(moment_slice.group, pieces, moments)
            used += 1
        return loss

    def _update(self, index: int, pieces: Sequence[SlicePiece], moments: Sequence[torch.Tensor]) -> None:
        """Updates the weights of `pieces`, whose slice's moments are on their device, in one launch."""
        group = self.param_groups[index]
        beta1, beta2 = group["betas"]
        sizes = [(piece.offset, piece.last - piece.first) for piece in pieces]
        cast(Any, torch)._fused_adamw_(
            [piece.parameter.detach().view(-1)[piece.first : piece.last] for piece in pieces],
            [cast(Any, piece.parameter).grad.reshape(-1)[piece.first : piece.last] for piece in pieces],
            *([moment.narrow(0, *size) for size in sizes] for moment in moments),
            [],
            [self.state[piece.parameter]["step"] for piece in pieces],
            amsgrad=False,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def release(self) -> None:
        """Drops moments and buffers, whose memory is freed with the last other reference to them. No step follows."""
        self.state.clear()
        self.slices = ()
        self.staging.buffers = self.staging.buffers[:0].clone()

    def wait(self) -> None:
        """Waits until the host's moments are those of the last step. Whoever reads or writes them calls it first."""
        self.staging.wait()


def offload_in_effect(optimizer: torch.optim.Optimizer) -> str:
    """Returns the value of `offload` for an engine whose weights are on the device: "moments" if all moments are in
    host memory, pinned beside a GPU.
    """
    if not isinstance(optimizer, HostMomentsAdamW):
        return "none"
    held = {
        state[name].device.type == "cpu" and (parameter.device.type == "cpu" or state[name].is_pinned())
        for parameter, state in optimizer.state.items()
        for name in _MOMENTS
        if parameter.numel()
    }
    return "moments" if held <= {True} else "some moments"


class Staging:
    """Staging buffers of a device, filled with the moments of one slice after another; on a CPU at once."""

    def __init__(self, num_values: int, dtype: torch.dtype, device: torch.device) -> None:
        self.buffers = torch.empty((STAGED_SLICES, len(_MOMENTS), num_values), dtype=dtype, device=device)

    def begin(self) -> None:
        """Begins a step: what the last one copied to the host is read from there no sooner."""

    @contextlib.contextmanager
    def staged(self, number: int, moments: Sequence[torch.Tensor]) -> Generator[Sequence[torch.Tensor], None, None]:
        """Yields copies on the device of the host's `moments`, for work on the current stream, and copies them back
        after it. `number` counts the slices of a step.
        """
        place = number % STAGED_SLICES
        buffers = [buffer[: moment.numel()] for buffer, moment in zip(self.buffers[place], moments, strict=True)]
        with self.filling(place):
            _copy(moments, buffers)
        yield buffers
        with self.emptying(place):
            _copy(buffers, moments)

    def filling(self, place: int) -> contextlib.AbstractContextManager[Any]:
        """Returns the context of the copies to a buffer."""
        return contextlib.nullcontext()

    def emptying(self, place: int) -> contextlib.AbstractContextManager[Any]:
        """Returns the context of the copies from a buffer to the host."""
        return contextlib.nullcontext()

    def wait(self) -> None:
        """Waits for all copies to the host."""


class StreamedStaging(Staging):
    """Staging buffers of a CUDA device, filled and emptied on two streams of their own.

    Events order the streams, the host never waits: a buffer is filled when its former slice is back on the host, and
    emptied after its update. A step's first slice waits for the last step's last copy back, because parameters without
    gradients change which slices a step has.
    """

    def __init__(self, num_values: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(num_values, dtype, device)
        self._device = device
        self._inward, self._outward = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._filled, self._updated, self._emptied = (
            [torch.cuda.Event() for _ in range(STAGED_SLICES)] for _ in range(3)
        )
        # Kernels in flight may still use the memory that became the buffers, and copies use it when it is freed.
        self._inward.wait_stream(torch.cuda.current_stream(device))
        for stream in (self._inward, self._outward):
            self.buffers.record_stream(stream)

    def begin(self) -> None:
        self._inward.wait_stream(self._outward)

    @contextlib.contextmanager
    def filling(self, place: int) -> Generator[None, None, None]:
        self._inward.wait_event(self._emptied[place])
        with torch.cuda.stream(self._inward):
            yield
        self._filled[place].record(self._inward)
        torch.cuda.current_stream(self._device).wait_event(self._filled[place])

    @contextlib.contextmanager
    def emptying(self, place: int) -> Generator[None, None, None]:
        self._updated[place].record(torch.cuda.current_stream(self._device))
        self._outward.wait_event(self._updated[place])
        with torch.cuda.stream(self._outward):
            yield
        self._emptied[place].record(self._outward)

    def wait(self) -> None:
        self._outward.synchronize()


def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source, non_blocking=True)


class _PinnedMemory(mmap.mmap):
    """Zeroed host memory that CUDA has pinned, exactly as large as asked; torch's own allocator rounds up to a power
    of two. It is released with the last tensor in it.

    Raises:
        MemoryError: the system does not give so much, or CUDA cannot pin it.
    """

    address: int = 0
    device: torch.device

    @classmethod
    def of(cls, num_bytes: int, device: torch.device) -> "_PinnedMemory":
        try:
            memory = cls(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:  # Python has no MemoryError for a mapping
            raise MemoryError(_not_pinned(num_bytes, error.strerror or str(error))) from error
        # A fork would share the pages, and the next write would move them away from the device's copies.
        memory.madvise(mmap.MADV_DONTFORK)
        with contextlib.suppress(OSError):  # a kernel without huge pages; with them pinning is faster
            memory.madvise(mmap.MADV_HUGEPAGE)
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        with torch.cuda.device(device):
            code = int(cast(Any, torch.cuda.cudart()).cudaHostRegister(address, num_bytes, 0))
        if code:
            raise MemoryError(_not_pinned(num_bytes, f"CUDA error {code}"))
        memory.address, memory.device = address, device
        return memory

    def __del__(self) -> None:
        if self.address and not sys.is_finalizing():
            torch.cuda.synchronize(self.device)  # copies may still be on their way
            cast(Any, torch.cuda.cudart()).cudaHostUnregister(self.address)


def _not_pinned(num_bytes: int, reason: str) -> str:
    return (
        f"{num_bytes / 2**30:.1f} GiB of host memory cannot be pinned ({reason}): choose offload none, or more shards"
    )


def _host_zeros(num_values: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns zeros in host memory, pinned beside a CUDA `device`."""
    if device.type != "cuda" or not num_values:
        return torch.zeros(num_values, dtype=dtype)
    return torch.frombuffer(_PinnedMemory.of(num_values * dtype.itemsize, device), dtype=dtype)
