"""What ends a command from outside: Ctrl-C, SIGTERM, a closed terminal, its output's reader that left or full disk."""

import contextlib
import errno
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NoReturn

INTERRUPTED = 130
READER_LEFT = 128 + signal.SIGPIPE
"""What a shell calls the end of a filter whose reader left, as of `yes | head`."""
UNWRITTEN = os.EX_IOERR
"""No code that says something else here: 1 is that nothing fits."""


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Ends the process with the code of a command's `main`; quietly where the reader of its output left (`| head`).

    SIGPIPE itself would do so too, but would also kill a driver of Ray whose socket breaks.
    """
    _take_any_text()
    try:
        code = main()
        sys.stdout.flush()
    except SystemExit as end:  # rich makes this of it, with code 1, which says something else here
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
    sys.exit(code)


def _take_any_text() -> None:
    """No output is an error for its characters, nor for a stream that who started the command had closed (`>&-`)."""
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
