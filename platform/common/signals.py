"""Handling of what ends a command from outside: Ctrl-C, SIGTERM, a closed terminal, a closed pipe, a full disk."""

import contextlib
import errno
import io
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NoReturn

INTERRUPTED = 130
READER_LEFT = 128 + signal.SIGPIPE
"""Exit code that a shell reports for a filter whose reader left, as in `yes | head`."""
UNWRITTEN = os.EX_IOERR
"""Exit code where the output could not be written; 1 already means that nothing fits."""
INTERRUPT_S = 60.0
"""Seconds a command may take to end after Ctrl-C: Ray stops its processes, MLflow gets 30 s to catch up. A command that
is `still_ending` has as many again.
"""
ONE_INTERRUPT_S = 1.0
"""Seconds within which repeated interrupts are one."""


_skips_exit_hooks = False


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Ends the process with the exit code that `main` returns; quietly where the reader of the output left (`| head`).

    The default action of SIGPIPE would do the same, but would also kill a Ray driver whose socket breaks.
    """
    _take_any_text()
    try:
        code = main()
        sys.stdout.flush()
    except SystemExit as end:  # rich turns it into exit code 1, which has another meaning here
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        code = READER_LEFT
    except BrokenPipeError:
        if not any(map(_reader_left, (1, 2))):
            raise
        code = READER_LEFT
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"error: not all of the output could be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as below
        code = UNWRITTEN
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        code = INTERRUPTED
    if code == READER_LEFT:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in filter(_reader_left, (1, 2)):  # Python flushes at its end what it still holds
            os.dup2(nowhere, stream)
    if _skips_exit_hooks:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def skip_exit_hooks() -> None:
    """Makes `exit_with` end the process without what libraries do at exit, which may block or change the code."""
    global _skips_exit_hooks
    _skips_exit_hooks = True


def _take_any_text() -> None:
    """Makes output accept every character, and tolerate streams that the caller had closed (`>&-`)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):  # the terminal need not be UTF-8, nor a file's name
            stream.reconfigure(errors="backslashreplace")


def _reader_left(stream: int) -> bool:
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


class _Interrupts:
    """The interrupts of this process. Those within `ONE_INTERRUPT_S` of one are the same: `timeout` and shells send a
    signal to a process and to its whole group.
    """

    def __init__(self) -> None:
        self.last_s = self.ending_s = -math.inf
        self.counted: list[float] | None = None
        """Their times, where they raise nothing."""

    def __call__(self, *_: object) -> None:
        now_s = time.monotonic()
        if now_s - self.last_s < ONE_INTERRUPT_S:
            return
        self.last_s = now_s
        if self.counted is None:
            raise KeyboardInterrupt
        self.counted.append(now_s)


_interrupts = _Interrupts()


@contextlib.contextmanager
def interruptible() -> Generator[None]:
    """Makes SIGTERM, and a closed terminal except under `nohup`, end a command as Ctrl-C does."""
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def hang_up(*_: object) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a shell may send its own after the kernel's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in terminals:  # to write there is an error now, and would end the command half-way
            os.dup2(nowhere, stream)
        _interrupts()

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _interrupts)}
    for number, handler in ((signal.SIGINT, _interrupts), (signal.SIGHUP, hang_up)):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def counted_interrupts() -> Generator[Sequence[float]]:
    """Yields the times of interrupts so far (`time.monotonic`), which raise nothing meanwhile: raised where one is
    answered, a second would undo that. It needs `interruptible` around it.
    """
    before, _interrupts.counted = _interrupts.counted, []
    try:
        yield _interrupts.counted
    finally:
        _interrupts.counted = before


def still_ending() -> None:
    """Says that the main thread is not stuck, but ends the command by work that takes its time."""
    _interrupts.ending_s = time.monotonic()


@contextlib.contextmanager
def sigterm_restored() -> Generator[None]:
    """Restores, at its end, the SIGTERM handler that was set before: Ray installs its own when it connects."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def leave() -> NoReturn:
    """Ends the process at once as interrupted, for use where the main thread is stuck."""
    with contextlib.suppress(OSError):
        print("Interrupted.", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def ends_when_interrupted(end: Callable[[], None] = leave) -> Generator[None]:
    """Calls `end` from another thread if the process still runs `INTERRUPT_S` after Ctrl-C or SIGTERM.

    After the first signal it watches until the process ends, since code after this context may be stuck too. It works
    in the main thread only, the one that Python delivers signals to, and does nothing elsewhere.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # The C part of Python's handler writes here at once, while the main thread may be deep in a call into Ray.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=_watch_signals, args=(reading, end), name="interrupt", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)


def _watch_signals(reading: int, end: Callable[[], None]) -> None:
    ending_signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    while numbers := os.read(reading, 64):  # empty once the other end is closed
        if any(number in ending_signals for number in numbers):
            began_s = time.monotonic()
            while (remaining_s := max(began_s, _interrupts.ending_s) + INTERRUPT_S - time.monotonic()) > 0:
                time.sleep(remaining_s)
            end()
            return
    os.close(reading)
