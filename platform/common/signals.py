"""Handles events that end a command from outside: Ctrl-C, SIGTERM, a closed terminal, a closed pipe, a full disk."""

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
from typing import Any, NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command."""
INTERRUPTED = 130
READER_LEFT = 128 + signal.SIGPIPE
"""Exit code if the reader of the output closed the pipe, as in `yes | head`; a shell reports the same for SIGPIPE."""
UNWRITTEN = os.EX_IOERR
"""Exit code if the output could not be written; 1 already means that nothing fits."""
INTERRUPT_S = 60.0
"""Seconds a command may take to end after Ctrl-C (MLflow gets 30 s to finish). `still_ending` restarts this time."""
ONE_INTERRUPT_S = 1.0
"""Interrupts less than this many seconds apart count as one."""


_skips_exit_hooks = False


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Ends the process with the exit code of `main`, silently if the reader of the output closed the pipe (`| head`).

    A signal interrupts `main` (see `interruptible`) and changes nothing after it: Python would give a handled one its
    default action again, and then take libraries down for seconds.

    The default action of SIGPIPE would do the same as a closed pipe, but would also kill a Ray driver when a socket
    breaks.
    """
    _take_any_text()
    _take_signals()
    try:
        code = main()
        sys.stdout.flush()
    except SystemExit as end:  # rich turns a broken pipe into exit code 1, which means "nothing fits" here
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing more is written, as below
        code = UNWRITTEN
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        code = INTERRUPTED
    finally:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
    if code == READER_LEFT:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in filter(_reader_left, (1, 2)):  # at exit Python flushes buffered output, which would raise again
            os.dup2(nowhere, stream)
    if _skips_exit_hooks:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def skip_exit_hooks() -> None:
    """Makes `exit_with` skip the exit hooks of libraries, which may block or change the exit code."""
    global _skips_exit_hooks
    _skips_exit_hooks = True


def _take_any_text() -> None:
    """Makes standard output and error accept every character, and replaces streams that the caller closed (`>&-`)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):  # the terminal's encoding or a file's name may not be UTF-8
            stream.reconfigure(errors="backslashreplace")


def _reader_left(stream: int) -> bool:
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


class _Interrupts:
    """The interrupt handler of this process. Interrupts within `ONE_INTERRUPT_S` count as one, because `timeout` and
    shells signal both a process and its process group.
    """

    def __init__(self) -> None:
        self.last_s = self.ending_s = -math.inf
        self.counted: list[float] | None = None
        """Times of interrupts while they are counted; None while an interrupt raises `KeyboardInterrupt`."""

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
    """Makes SIGTERM and a closed terminal raise `KeyboardInterrupt` as Ctrl-C does, except under `nohup`."""
    before = _take_signals()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _take_signals() -> dict[signal.Signals, Any]:
    """Sets the handlers of `interruptible`; returns those before them."""
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def hang_up(*_: object) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the shell may send a second SIGHUP after the kernel's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in terminals:  # writing to the closed terminal would raise an error and end the command early
            os.dup2(nowhere, stream)
        _interrupts()

    before: dict[signal.Signals, Any] = {signal.SIGTERM: signal.signal(signal.SIGTERM, _interrupts)}
    for number, handler in ((signal.SIGINT, _interrupts), (signal.SIGHUP, hang_up)):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    return before


@contextlib.contextmanager
def counted_interrupts() -> Generator[Sequence[float]]:
    """Yields a list that collects the times (`time.monotonic`) of interrupts, which raise nothing inside this context.

    Use it inside `interruptible`, around code that answers an interrupt: a second one would otherwise abort that code.
    """
    before, _interrupts.counted = _interrupts.counted, []
    try:
        yield _interrupts.counted
    finally:
        _interrupts.counted = before


def still_ending() -> None:
    """Restarts the time limit of `ends_when_interrupted`: the main thread is ending the command and is not stuck."""
    _interrupts.ending_s = time.monotonic()


@contextlib.contextmanager
def sigterm_restored() -> Generator[Callable[[], None]]:
    """Restores the present SIGTERM handler on leaving, and when the yielded function is called.

    Ray installs its own when it connects, and leaves the default action when it disconnects.
    """
    before = signal.getsignal(signal.SIGTERM)

    def restore() -> None:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)

    try:
        yield restore
    finally:
        restore()


def leave() -> NoReturn:
    """Ends the process at once with exit code `INTERRUPTED`; for a stuck main thread."""
    with contextlib.suppress(OSError):
        print("Interrupted.", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def ends_when_interrupted(end: Callable[[], None] = leave) -> Generator[None]:
    """Calls `end` from another thread if the process still runs `INTERRUPT_S` after Ctrl-C, SIGTERM or SIGHUP.

    After the first signal the thread watches until the process ends, because code after this context may be stuck too.
    Outside the main thread, which alone receives signals in Python, this context does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Python's C-level handler writes to this pipe at once, even while the main thread is inside a call into Ray.
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
    while numbers := os.read(reading, 64):  # empty after the other end is closed
        if any(number in ENDING for number in numbers):
            began_s = time.monotonic()
            while (remaining_s := max(began_s, _interrupts.ending_s) + INTERRUPT_S - time.monotonic()) > 0:
                time.sleep(remaining_s)
            end()
            return
    os.close(reading)
