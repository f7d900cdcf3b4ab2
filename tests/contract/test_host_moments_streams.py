"""The order of copies between streams, whichever slices a step has, by clocks of streams in place of a GPU's."""

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import pytest
import torch

from trainers.engines import host_moments

CPU = torch.device("cpu")


class _Stream:
    """A stream as the numbers of the operations of each stream that it has waited for."""

    current: "_Stream"

    def __init__(self, _device: object = None) -> None:
        self.done = {self: 0}

    def wait_stream(self, other: "_Stream") -> None:
        self.wait_event(other)

    def wait_event(self, other: Any) -> None:
        for stream, number in other.done.items():
            self.done[stream] = max(number, self.done.get(stream, 0))

    def enqueue(self) -> tuple["_Stream", int]:
        self.done[self] += 1
        return self, self.done[self]


class _Event:
    def __init__(self) -> None:
        self.done: dict[_Stream, int] = {}

    def record(self, stream: _Stream) -> None:
        self.done = dict(stream.done)


@contextlib.contextmanager
def _on(stream: _Stream) -> Generator[None, None, None]:
    former, _Stream.current = _Stream.current, stream
    yield
    _Stream.current = former


class _Buffers:
    """Staging buffers that hold nothing; each is named by its place."""

    def __getitem__(self, place: int) -> list[Any]:
        return [_Buffer(place)]

    def record_stream(self, stream: _Stream) -> None:
        pass


class _Buffer:
    def __init__(self, place: int) -> None:
        self.place = place

    def __getitem__(self, _size: slice) -> "_Buffer":
        return self


@pytest.mark.parametrize(
    "steps", [(range(8), range(8)), (range(8), (7,)), (range(7), (6, 0, 5)), ((5, 6), (6,), (6, 5)), (range(2), (1,))]
)
def test_a_slice_is_read_from_the_host_after_it_was_written_there(
    steps: Sequence[Sequence[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _Stream.current = _Stream()
    written = dict[int, tuple[_Stream, int]]()
    freed = dict[int, tuple[_Stream, int]]()

    def copy(sources: Sequence[Any], targets: Sequence[Any]) -> None:
        now, operation = _Stream.current, _Stream.current.enqueue()
        if isinstance(sources[0], _Buffer):  # back to the host
            written[len(targets[0])], freed[sources[0].place] = operation, operation
            return
        for stream, number in filter(None, (written.get(len(sources[0])), freed.get(targets[0].place))):
            assert now.done.get(stream, 0) >= number

    monkeypatch.setattr(host_moments, "_copy", copy)
    monkeypatch.setattr(host_moments.torch, "empty", lambda *_, **__: _Buffers())
    for name, stand_in in (("Stream", _Stream), ("Event", _Event), ("stream", _on)):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: _Stream.current)
    moments = [torch.zeros(size) for size in range(8)]
    staging = host_moments.StreamedStaging(8, torch.float32, CPU)
    for slices in steps:
        staging.begin()
        for used, number in enumerate(slices):
            with staging.staged(used, [moments[number]]):
                _Stream.current.enqueue()
    assert set(written) == {number for slices in steps for number in slices}
