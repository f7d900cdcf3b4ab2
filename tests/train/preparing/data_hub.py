"""A small data set hub on loopback that answers `HfFileSystem` like the Hugging Face hub: facts of a repository, its
tree, facts of paths, and ranges of files.
"""

import contextlib
import json
import re
import urllib.parse
from collections.abc import Generator, Mapping
from typing import Any

from tests.loopback import Answering, listening

COMMIT = "b" * 40
_ADDRESS = re.compile(
    r"(/api)?/datasets/(?P<name>[^/]+/[^/]+)(?:/(?P<what>[a-z-]+)/(?P<revision>[^/]+)/?(?P<path>.*))?"
)


@contextlib.contextmanager
def serving(name: str, files: Mapping[str, bytes]) -> Generator[str]:
    """Runs a hub with one data set of these files; yields its address."""

    class Handler(Answering):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
            text = urllib.parse.parse_qs(body).get("paths") or json.loads(body)["paths"]
            self.answer(text)

        def answer(self, paths: list[str] | None = None) -> None:
            match = _ADDRESS.fullmatch(urllib.parse.unquote(self.path.partition("?")[0]))
            if match is None or match["name"] != name:
                self.reply(404, b"", **{"X-Error-Code": "RepoNotFound"})
            elif match["what"] == "resolve" and match["path"] in files:
                self._range(files[match["path"]])
            elif match["what"] == "paths-info":
                self._json([_facts(path, files) for path in paths or [] if _facts(path, files)])
            elif match["what"] == "tree":
                below = [path for path in _all_paths(files) if path.startswith(match["path"])]
                self._json([_facts(path, files) for path in below if path != match["path"]])
            elif match["what"] in (None, "revision"):
                siblings = [{"rfilename": path} for path in files]
                self._json({"id": name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []})
            else:
                self.reply(404, b"", **{"X-Error-Code": "EntryNotFound"})

        def _range(self, data: bytes) -> None:
            begin, end = 0, len(data)
            if wanted_range := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range") or ""):
                begin, end = int(wanted_range[1]), min(end, int(wanted_range[2] or end) + 1)
            self.reply(206 if wanted_range else 200, data[begin:end], ETag='"e"', **{"X-Repo-Commit": COMMIT})

        def _json(self, value: Any) -> None:
            self.reply(200, json.dumps(value).encode(), **{"Content-Type": "application/json"})

    with listening(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def _all_paths(files: Mapping[str, bytes]) -> list[str]:
    folders = {parent for path in files for parent in _parents(path)}
    return sorted({*files, *folders})


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _facts(path: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    if path in files:
        return {"type": "file", "path": path, "size": len(files[path]), "oid": "c" * 40}
    return {"type": "directory", "path": path, "oid": "d" * 40} if path in _all_paths(files) else {}
