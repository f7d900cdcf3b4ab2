"""`MicroStepGraphs`: micro-steps captured once as CUDA graphs, and launched as one each (`torch.cuda.CUDAGraph`)."""

import contextlib
from collections.abc import Callable, Generator

import torch


@contextlib.contextmanager
def memory_errors_first() -> Generator[None, None, None]:
    """Raises the `torch.OutOfMemoryError` that broke off a capture, in whose place the end of the capture raises its
    own error.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, torch.OutOfMemoryError):
            raise error.__context__ from None
        raise


class MicroStepGraphs:
    """Holds the graphs of micro-steps on one shape of tokens: one that exchanges gradients and one that does not.

    A graph reads and writes the same addresses each time: weights, gradients and a copy of the tokens. From the
    beginning all of the process's work is on the stream of the captures, since DDP's hooks and autograd's sums of
    gradients stay on the stream on which they were made, and a capture cannot wait for another one.
    """

    def __init__(self, device: torch.device) -> None:
        self._before = torch.cuda.current_stream(device)
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(self._before)
        torch.cuda.set_stream(self._stream)
        self._tokens = torch.zeros((0, 0), dtype=torch.int64, device=device)
        self._graphs: dict[bool, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    @property
    def exchanging(self) -> frozenset[bool]:
        """Whether the graphs that there are exchange gradients."""
        return frozenset(self._graphs)

    def forget(self, shape: torch.Size) -> None:
        """Frees all graphs; the next ones take int64 tokens of `shape`."""
        self._graphs.clear()
        self._tokens = self._tokens.new_zeros(shape)

    def capture(self, micro_step: Callable[[torch.Tensor], torch.Tensor], *, exchange: bool) -> None:
        """Captures `micro_step`, which takes tokens and returns its loss. Nothing runs.

        Raises:
            torch.OutOfMemoryError: what the graph keeps for itself does not fit.
        """
        graph = torch.cuda.CUDAGraph()
        # Graphs share their memory: they run one after the other, and each writes what it reads.
        pool = next((captured.pool() for captured, _ in self._graphs.values()), None)
        # Other threads, such as NCCL's watchdog, may call what a capture forbids.
        with (
            memory_errors_first(),
            torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            loss = micro_step(self._tokens)
        self._graphs[exchange] = graph, loss

    def replay(self, tokens: torch.Tensor, *, exchange: bool) -> torch.Tensor:
        """Launches a micro-step on `tokens`; returns its loss, 0-dim."""
        graph, loss = self._graphs[exchange]
        self._tokens.copy_(tokens, non_blocking=True)
        graph.replay()
        return loss.clone()

    def close(self) -> None:
        """Frees the graphs and gives the process its stream back."""
        self._graphs.clear()
        self._before.wait_stream(self._stream)
        torch.cuda.set_stream(self._before)
