"""The cluster's head, watched while a study runs: without it every call into Ray waits, and then ends the process."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator

from trainers.node import error_of

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
