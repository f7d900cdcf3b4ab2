"""Runs a command that holds a Ray in a process below this one, which says how it ended where Ray ends it.

Ray ends its driver with exit code 1, without a word or a hook of Python, as soon as its raylet is lost; and while it
starts or shuts down, SIGTERM may have its default action. No code in that process can prevent either.
"""

import contextlib
import ctypes
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from platform.cluster.claims import claims
from platform.common.errors import ClusterError
from platform.common.output import print_line
from platform.common.signals import ENDING, FORWARDED, INTERRUPTED, ONE_INTERRUPT_S, exit_with, take_any_text

_SET_PARENT_DEATH_SIGNAL = 1
"""Option of `prctl` that names the signal which a process gets when its parent ends."""
_END = b"\0"
"""Byte before the exit code of a command that ended by itself."""
_SHOW_CURSOR = "\033[?25h\n"
_report: int | None = None
"""The supervised process's end of the pipe to its supervisor."""


def supervise(main: Callable[[], int]) -> NoReturn:
    """Ends the process as `exit_with(main)` does, with `main` in a process below this one.

    That process shares the group and the terminal, gets every interrupt that this one gets, and is killed with it. This
    one also sweeps what dead drivers left on this machine. Call it before threads are started.
    Outside Linux, where no Ray of ours runs, it is `exit_with`.
    """
    if sys.platform != "linux":
        exit_with(main)
    take_any_text()  # closed streams first, whose numbers the pipe would get
    reading, writing = os.pipe()
    supervisor, mask = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    child = os.fork()
    if not child:
        os.close(reading)
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(INTERRUPTED)
        _command(main, writing)
    os.close(writing)
    _forward_to(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    end_abandoned()
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)  # while the child's id is still its own
    _, status = os.waitpid(child, 0)
    code = _code_of(status, _read(reading))
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def resumes_by(words: str) -> None:
    """States how the command is resumed, such as "the same command resumes it", for the supervisor's last sentence."""
    if _report is not None:
        os.write(_report, f"{words}\n".encode())


def end_abandoned(*, keeps_logs: bool = False) -> None:
    """Ends what dead drivers of this user left on this machine, if they left anything."""
    if not any(claims()):
        return
    from platform.cluster import leftovers  # what this process need not load otherwise

    leftovers.end_abandoned_sessions(keeps_logs=keeps_logs)


def _command(main: Callable[[], int], writing: int) -> NoReturn:
    global _report
    _report = writing
    try:
        exit_with(main, lambda code: os.write(writing, _END + bytes((code,))))
    except BaseException:  # Python prints it and knows the code
        os.write(writing, _END)
        raise


def _forward_to(child: int) -> None:
    last_s = -math.inf

    def forward(*_: object) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= ONE_INTERRUPT_S:
            last_s = time.monotonic()
            os.kill(child, FORWARDED)

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)


def _read(reading: int) -> bytes:
    """Returns what is in the pipe, whose other end a process that the command forked may still have."""
    os.set_blocking(reading, False)
    written = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(reading, 65536):
            written += part
    return written


def _code_of(status: int, written: bytes) -> int:
    """Returns the exit code for the end of the command's process; says how it ended if it could not say so itself."""
    words, is_ended, code = written.partition(_END)
    if code:
        return code[0]
    ending = os.waitstatus_to_exitcode(status)
    if is_ended or ending not in (1, *(-number for number in signal.Signals)):
        end_abandoned()
        return ending
    if sys.stderr.isatty():
        print(_SHOW_CURSOR, end="", file=sys.stderr)  # of a progress line that was cut short
    how = words.decode(errors="replace").splitlines()[-1:] or ["run the command again"]
    end_abandoned(keeps_logs=ending == 1)
    with contextlib.suppress(OSError):
        if ending == 1:
            print_line(
                "cluster fault: Ray ended this command, as it does once its own process on this machine (raylet) is"
                f" lost; {how[0]}"
            )
        elif -ending in ENDING:
            print_line(f"Interrupted: {how[0]}.")
        else:
            print_line(f"The command was killed by {signal.Signals(-ending).name}; {how[0]}.")
    return ClusterError.exit_code if ending == 1 else INTERRUPTED if -ending in ENDING else 128 - ending
