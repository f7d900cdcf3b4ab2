"""An out-of-memory error within a capture stays one, though the end of the capture raises an error of its own."""

import contextlib
from collections.abc import Generator

import pytest
import torch

from trainers.engines.ddp_graphs import memory_errors_first


@contextlib.contextmanager
def _capture() -> Generator[None, None, None]:
    """Ends as `torch.cuda.graph` does after a failure: by an error in place of the first one."""
    try:
        yield
    finally:
        raise RuntimeError("operation failed due to a previous error during capture")


def test_memory_that_ran_out_is_told_as_such() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="tried to allocate"), memory_errors_first(), _capture():
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")


def test_other_errors_are_those_of_the_capture() -> None:
    with pytest.raises(RuntimeError, match="previous error during capture"), memory_errors_first(), _capture():
        raise RuntimeError("cannot copy between CPU and CUDA tensors")
    with pytest.raises(ValueError, match="another"), memory_errors_first():
        raise ValueError("another")
