"""A little model hub on loopback, which answers as the Hugging Face hub does, for `config.json` alone."""

import contextlib
import dataclasses
import http.server
import json
import threading
import time
from collections.abc import Generator
from typing import Any

COMMIT = "a" * 40
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
}


@dataclasses.dataclass
class Hub:
    """The hub's address, and what it was asked."""

    port: int = 0
    requests: list[tuple[str, str]] = dataclasses.field(default_factory=list[tuple[str, str]])
    """Path of each request, and its token."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving(elsewhere: Hub | None = None) -> Generator[Hub]:
    """Runs a hub; `elsewhere` is another one, to which it sends those who ask for the model acme/elsewhere."""
    hub = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Writes nothing."""

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            hub.requests.append((path, self.headers.get("authorization") or ""))
            config = json.dumps(CONFIG).encode()
            described = {"ETag": '"abc"', "X-Repo-Commit": COMMIT, "X-Linked-Size": str(len(config))}
            match path.split("/")[2]:
                case "open" if path.endswith(("/main/config.json", f"/{COMMIT}/config.json")):
                    self._reply(200, config, **described)
                case "open":
                    self._reply(404, **{"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
                case "gated":
                    self._reply(403 if hub.requests[-1][1] else 401, **{"X-Error-Code": "GatedRepo"})
                case "empty":
                    self._reply(404, **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
                case "elsewhere" if elsewhere is not None:
                    self._reply(302, **{**described, "Location": f"http://localhost:{elsewhere.port}/acme/open/resolve"
                                                               "/main/config.json"})  # fmt: skip
                case "broken":
                    self._reply(403, b"boom")
                case "slow":
                    time.sleep(30)
                case _:
                    self._reply(401, **{"X-Error-Code": "RepoNotFound"})

        def _reply(self, code: int, body: bytes = b"", /, **headers: str) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
