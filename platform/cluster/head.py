"""Watches the cluster's head and this node's raylet while a study runs.

If either is lost, every call into Ray blocks, for ever or until Ray ends the process.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, cast

from trainers.host.node import error_of

HEAD = "the cluster's head"
RAYLET = "Ray's own process on this machine (raylet)"
REFUSED_S = 10.0
"""Seconds of refused connections after which the head counts as lost; a restarted one would be another cluster. While
the head answers, a raylet that refuses one is lost at once: Ray may end this process meanwhile, without a message.
"""
SILENT_S = 45.0
"""Seconds without an answer after which the head counts as lost (a cut link may recover; Ray's limit is 60 s)."""
_POLL_S = 2.0
_ANSWER_S = 5.0


@contextlib.contextmanager
def watched(head: str, raylet: str, on_loss: Callable[[str], None]) -> Generator[None]:
    """Calls `on_loss` once from another thread with a sentence when either HOST:PORT is lost.

    Errors that Ray raises meanwhile are delayed until both answer again, because `on_loss` states the cause.
    """
    addresses, is_over = {HEAD: head, RAYLET: raylet}, threading.Event()
    threading.Thread(target=_watch, args=(addresses, on_loss, is_over), name="watch", daemon=True).start()
    try:
        yield
    except Exception:
        while any(map(_error_of, addresses.values())):
            time.sleep(_POLL_S)
        raise
    finally:
        is_over.set()


def is_lost(head: str) -> bool:
    return _error_of(head) is not None


def loss_of(raylet: str) -> str:
    """Returns a sentence if the raylet at HOST:PORT refuses connections, else "".

    Without it Ray ends this process, and prints nothing, as soon as a value is stored in the raylet's object store, as
    Ray Train does in `fit`.
    """
    host, _, port = raylet.rpartition(":")
    if raylet and isinstance(error := error_of(host, int(port)), ConnectionRefusedError):
        return f"{RAYLET} at {raylet} has ended ({error.strerror})"
    return ""


def _watch(addresses: Mapping[str, str], on_loss: Callable[[str], None], is_over: threading.Event) -> None:
    answered_s = dict.fromkeys(addresses, time.monotonic())
    while not is_over.wait(_POLL_S):
        refused_s = REFUSED_S
        for name, address in addresses.items():  # the head first, because a raylet ends without it
            error = _error_of(address)
            if error is None:
                answered_s[name] = time.monotonic()
                refused_s = 0.0
                continue
            away_s = time.monotonic() - answered_s[name]
            if away_s > (refused_s if isinstance(error, ConnectionRefusedError) else SILENT_S) and not is_over.is_set():
                on_loss(f"{name} at {address} has not answered for {away_s:.0f} s ({error.strerror or error})")
                return


def _error_of(address: str) -> OSError | None:
    """Returns why the gRPC server at HOST:PORT does not answer; None if it does.

    The kernel accepts connections of a stopped or stuck process, so the server's health is requested; any answer
    counts.
    """
    import grpc
    from ray._private.grpc_utils import init_grpc_channel
    from ray._private.ray_constants import GLOBAL_GRPC_OPTIONS  # else it would go through the machine's http_proxy

    host, _, port = address.rpartition(":")
    if error := error_of(host, int(port)):
        return error
    with cast(Any, init_grpc_channel(address, GLOBAL_GRPC_OPTIONS)) as channel:
        try:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=_ANSWER_S)
        except grpc.RpcError as error:
            code = cast(Any, error).code()
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return TimeoutError(f"{code.name}: {cast(Any, error).details()}")
    return None
