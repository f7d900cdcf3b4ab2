"""Models of the Hugging Face hub by id, `owner/name` or `owner/name@revision`; only their `config.json` is read."""

import dataclasses
import functools
import re
import subprocess
import sys
from pathlib import Path

from trainers.spec.codec import json_object

_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w-][\w.-]*(?<!\.py)(?<!\.json))(?:@([\w.-][\w./-]*))?")
_ADDRESS = re.compile(r"(?:https?://)?(?:huggingface\.co|hf\.co)/(?!datasets/|spaces/|docs/)([\w.-]+/[\w.-]+)")
_ROOT = Path(__file__).resolve().parents[__name__.count(".")]
LONGEST_S = 15.0
"""Seconds allowed for the hub's answer; its library would retry for more than a minute."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HubConfig:
    """A `config.json` of the hub, in its cache on this machine."""

    model: str
    path: Path
    commit: str
    endpoint: str
    warning: str

    @property
    def pinned(self) -> str:
        """The id of the same file, which needs no network while the file is in the cache."""
        return f"{self.model}@{self.commit}"

    @property
    def remarks(self) -> tuple[str, ...]:
        source = f"the config.json of {self.model} is that of commit {self.commit[:12]} at {self.endpoint}"
        return (source, self.warning) if self.warning else (source,)


def is_id(text: str) -> bool:
    """Returns whether `text` has the form of an id; a path may have it too."""
    return _ID.fullmatch(text) is not None


def id_of_address(text: str) -> str:
    """Returns the id in an address of a model's page on the hub; "" for other texts."""
    match = _ADDRESS.match(text)
    return match[1] if match and is_id(match[1]) else ""


@functools.cache
def fetch(text: str) -> HubConfig:
    """Returns the configuration of the id `text`; fetched once per process.

    Raises:
        ValueError: it cannot be fetched; states the reason and a remedy.
    """
    match = _ID.fullmatch(text)
    assert match is not None
    model, revision = match.groups()
    command = [sys.executable, "-m", "trainers.models.hub_config", model, *([revision] if revision else [])]
    try:
        completed = subprocess.run(command, cwd=_ROOT, capture_output=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{text} is no file here, and the hub did not answer within {LONGEST_S:g} s: try again, or give the path of"
            " its config.json"
        ) from None
    try:
        answer = json_object(completed.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        reason = completed.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no answer"]
        raise ValueError(f"{text} is no file here, and the hub could not be asked: {reason[0]}") from None
    if "error" in answer:
        raise ValueError(f"{text} is no file here, and the model {answer['error']}")
    path, commit, endpoint, warning = (str(answer[key]) for key in ("path", "commit", "endpoint", "warning"))
    return HubConfig(model=model, path=Path(path), commit=commit, endpoint=endpoint, warning=warning)
