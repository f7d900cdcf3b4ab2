"""Sentences that tests compare with recorded ones in files beside them; `pytest --regenerate-golden` records them
anew.
"""

import json
from pathlib import Path

FOLDER = "wording"


class Wording:
    """The sentences of one test, each compared with the recorded one in the order in which the test states them."""

    def __init__(self, module: Path, test: str, *, regenerates: bool) -> None:
        """Takes the path of the test's file and the test's name, including class and parameters."""
        self._path = module.parent / FOLDER / f"{module.stem}.json"
        self._test, self._regenerates = test, regenerates
        self._sentences: list[str] = []

    def __call__(self, sentence: str) -> None:
        """Compares the sentence with the recorded one, or records it."""
        self._sentences.append(sentence)
        recorded = read(self._path)
        if self._regenerates:
            recorded[self._test] = self._sentences
            self._path.parent.mkdir(exist_ok=True)
            text = json.dumps(dict(sorted(recorded.items())), indent=1, ensure_ascii=False)
            self._path.write_text(f"{text}\n", encoding="utf-8")
        before = recorded.get(self._test, [])[: len(self._sentences)]
        assert self._sentences == before, "read the change; if it is meant, run pytest --regenerate-golden"


def read(path: Path) -> dict[str, list[str]]:
    """Returns the recorded sentences of each test; empty if the file is missing."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}
