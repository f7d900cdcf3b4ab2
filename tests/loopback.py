"""An HTTP server on loopback whose answers a test defines, and ports: without a server, or for one."""

import contextlib
import http.server
import random
import socket
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers GET and HEAD by the subclass's `answer`, without a log."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        """Answers the request."""
        raise NotImplementedError

    def reply(self, code: int, body: bytes = b"", /, **headers: str) -> None:
        """Sends the status, the headers and, except to HEAD, the body."""
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(body)


@contextlib.contextmanager
def listening(handler: type[Answering]) -> Generator[int]:
    """Runs a server with this handler; yields its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()


@contextlib.contextmanager
def closed_port(host: str = "127.0.0.1") -> Generator[int]:
    """Yields a port on which nothing listens.

    A socket holds it meanwhile, or the kernel might give it to another process, such as one of a Ray that another test
    starts. A server that reuses addresses, as MLflow's and those of gRPC do, can listen on it all the same.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield holder.getsockname()[1]


_HELD: list[socket.socket] = []
"""Names that this process holds until its end, one for each port that it was given."""


def free_port() -> int:
    """Returns a port on which a server may listen later: nothing listens there, no other call returns it while this
    process lives, and the kernel gives it to no socket that asks for any port.
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [*range(20_000, first_given)]  # below them Ray's workers listen
    random.shuffle(ports)
    for port in ports:
        holder = socket.socket(socket.AF_UNIX)
        try:
            holder.bind(f"\0layout-search-test-port-{port}")  # a name of Linux alone, no file
            with socket.socket() as listener:
                listener.bind(("", port))
        except OSError:
            holder.close()
            continue
        _HELD.append(holder)
        return port
    raise OSError(f"no port from 20000 to {first_given} is free")
