"""A small model hub on loopback that answers requests for `config.json` like the Hugging Face hub."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Generator

from tests.loopback import Answering, listening

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
    """The hub's address and the requests that it received."""

    port: int = 0
    requests: list[tuple[str, str]] = dataclasses.field(default_factory=list[tuple[str, str]])
    """Path and token of each request."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving(elsewhere: Hub | None = None) -> Generator[Hub]:
    """Runs a hub; it redirects requests for the model acme/elsewhere to the hub `elsewhere`."""
    hub = Hub()

    class Handler(Answering):
        def answer(self) -> None:
            path = self.path.partition("?")[0]
            hub.requests.append((path, self.headers.get("authorization") or ""))
            config = json.dumps(CONFIG).encode()
            described = {"ETag": '"abc"', "X-Repo-Commit": COMMIT, "X-Linked-Size": str(len(config))}
            match path.split("/")[2]:
                case "open" if path.endswith(("/main/config.json", f"/{COMMIT}/config.json")):
                    self.reply(200, config, **described)
                case "open":
                    self.reply(404, **{"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
                case "gated":
                    self.reply(403 if hub.requests[-1][1] else 401, **{"X-Error-Code": "GatedRepo"})
                case "empty":
                    self.reply(404, **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
                case "elsewhere" if elsewhere is not None:
                    self.reply(302, **{**described, "Location": f"http://localhost:{elsewhere.port}/acme/open/resolve"
                                                               "/main/config.json"})  # fmt: skip
                case "broken":
                    self.reply(403, b"boom")
                case "slow":
                    time.sleep(30)
                case _:
                    self.reply(401, **{"X-Error-Code": "RepoNotFound"})

    with listening(Handler) as hub.port:
        yield hub
