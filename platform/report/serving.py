"""`--serve`: serves the page of studies on this machine; it is rebuilt when journals grow, and browsers reload it."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from platform.common.errors import InputError, one_line
from platform.common.output import print_line
from platform.report.html.page import page
from platform.study.journal import JOURNAL
from platform.study.lock import is_locked
from platform.study.result.result import StudyResult

HOST = "127.0.0.1"
REFRESH_S = 10
"""Seconds after which a browser reloads the page of a running search."""


class Pages:
    """The page of the studies in `folders`, whose results `read` returns; rebuilt when a journal has changed."""

    def __init__(self, folders: Sequence[Path], read: Callable[[Path], StudyResult]) -> None:
        self._folders, self._read = folders, read
        self._written: tuple[object, str] = (None, "")
        self._lock = threading.Lock()

    def text(self) -> str:
        """Returns the page's present text.

        Raises:
            InputError: a journal cannot be read.
        """
        with self._lock:
            running = any(map(is_locked, self._folders))
            journals = [(folder / JOURNAL).stat() for folder in self._folders]
            state = running, [(journal.st_size, journal.st_mtime_ns) for journal in journals]
            if self._written[0] != state:
                results = [self._read(folder) for folder in self._folders]
                self._written = state, page(results, self._folders, refresh_s=REFRESH_S if running else None)
            return self._written[1]


def server(pages: Pages, port: int) -> http.server.ThreadingHTTPServer:
    """Returns the page's HTTP server, which only listens on this machine; port 0 selects a free port.

    Raises:
        InputError: the port cannot be used.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers.get("Host", "").rpartition(":")[0]
            if self.path.partition("?")[0] != "/" or host not in (
                HOST,
                "localhost",
            ):  # refused: another site could reach this server by DNS rebinding
                self.send_error(404)
                return
            try:
                status, body = 200, pages.text()
            except (InputError, OSError) as error:
                status, body = 500, one_line(error)
            data = body.encode()
            self.send_response(status)
            self.send_header(
                "Content-Type", "text/html; charset=utf-8" if status == 200 else "text/plain; charset=utf-8"
            )
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    try:
        return http.server.ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise InputError(f"port {port} of {HOST} cannot be used ({error}): give another to --serve, or 0") from error


def serve(pages: Pages, port: int) -> None:
    """Serves the page until Ctrl-C.

    Raises:
        InputError: the port cannot be used, or a journal cannot be read.
    """
    with server(pages, port) as listening:
        pages.text()
        address = f"http://{HOST}:{listening.server_address[1]}/"
        print_line(f"The page: open {address}, which follows a running search; Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            listening.serve_forever()
