"""`MicroStepGraphs`: captures micro-steps as CUDA graphs (`torch.cuda.CUDAGraph`) and replays each with one launch."""

import contextlib
from collections.abc import Callable, Generator

import torch


@contextlib.contextmanager
def memory_errors_first() -> Generator[None, None, None]:
    """Raises the `torch.OutOfMemoryError` that interrupted a capture instead of the error of the capture's end."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, torch.OutOfMemoryError):
            raise error.__context__ from None
        raise


class MicroStepGraphs:
    """Holds the graphs of micro-steps for one shape of tokens: with and without gradient exchange.

    A graph always uses the same addresses: weights, gradients and a copy of the tokens. All work of the process moves
    to the captures' stream at once, because DDP's hooks and autograd's gradient sums stay on the stream where they were
    created, and a capture cannot wait for another stream.
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
        """Kinds of the captured graphs: True for one that exchanges gradients, False for one that does not."""
        return frozenset(self._graphs)

    def forget(self, shape: torch.Size) -> None:
        """Frees all graphs; later ones take int64 tokens of `shape`."""
        self._graphs.clear()
        self._tokens = self._tokens.new_zeros(shape)

    def capture(self, micro_step: Callable[[torch.Tensor], torch.Tensor], *, exchange: bool) -> None:
        """Captures `micro_step`, which takes tokens and returns its loss, without running it.

        Raises:
            torch.OutOfMemoryError: the graph's private memory does not fit.
        """
        graph = torch.cuda.CUDAGraph()
        # Graphs share one memory pool: they run one after the other and write before they read.
        pool = next((captured.pool() for captured, _ in self._graphs.values()), None)
        # Other threads, such as NCCL's watchdog, may make calls that a global capture forbids.
        with (
            memory_errors_first(),
            torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            loss = micro_step(self._tokens)
        self._graphs[exchange] = graph, loss

    def replay(self, tokens: torch.Tensor, *, exchange: bool) -> torch.Tensor:
        """Replays a micro-step on `tokens`; returns its loss, 0-dim."""
        graph, loss = self._graphs[exchange]
        self._tokens.copy_(tokens, non_blocking=True)
        graph.replay()
        return loss.clone()

    def close(self) -> None:
        """Frees the graphs and restores the process's stream."""
        self._graphs.clear()
        self._before.wait_stream(self._stream)
        torch.cuda.set_stream(self._before)
