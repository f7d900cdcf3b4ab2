"""The cluster's head, watched while a study runs: without it every call into Ray waits, and then ends the process."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator

REFUSED_S = 10.0
"""How long nobody may listen at the head's port: its process is gone, and a start anew is another cluster."""
SILENT_S = 45.0
"""How long its machine may not answer at all: a cut link may heal. Ray itself gives up after 60 s."""
_POLL_S = 2.0


@contextlib.contextmanager
def watched(address: str, lost: Callable[[str], None]) -> Generator[None]:
    """Calls `lost`, in a thread of its own and once, with a sentence when the head at HOST:PORT is gone.

    What Ray raises meanwhile is kept back until the head answers again: `lost` is to say the cause.
    """
    host, _, port = address.rpartition(":")
    over = threading.Event()
    threading.Thread(target=_watch, args=(host, port, lost, over), name="head", daemon=True).start()
    try:
        yield
    except Exception:
        while error_of(host, int(port)):
            time.sleep(_POLL_S)
        raise
    finally:
        over.set()


def _watch(host: str, port: str, lost: Callable[[str], None], over: threading.Event) -> None:
    answered_s = time.monotonic()
    while not over.wait(_POLL_S):
        error = error_of(host, int(port))
        if error is None:
            answered_s = time.monotonic()
            continue
        away_s = time.monotonic() - answered_s
        if away_s > (REFUSED_S if isinstance(error, ConnectionRefusedError) else SILENT_S) and not over.is_set():
            lost(f"the cluster's head at {host}:{port} has not answered for {away_s:.0f} s ({error.strerror or error})")
            return


def error_of(host: str, port: int, timeout_s: float = 5.0) -> OSError | None:
    """Why nobody answers there in time, None where somebody does."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError as error:
        return error
    except OverflowError as error:  # no port has such a number
        return OSError(str(error))
    return None
