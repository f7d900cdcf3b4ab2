"""What ends a search from outside, in order: Ctrl-C, SIGTERM, and a terminal that is closed."""

import contextlib
import os
import signal
from collections.abc import Generator


@contextlib.contextmanager
def interruptible() -> Generator[None]:
    """SIGTERM ends a search as Ctrl-C does, and so does a terminal that is closed, unless under `nohup`."""
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def hang_up(*_: object) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a shell may send its own after the kernel's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in terminals:  # to write there is an error now, and would end the search half-way
            os.dup2(nowhere, stream)
        raise KeyboardInterrupt

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, signal.default_int_handler)}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
