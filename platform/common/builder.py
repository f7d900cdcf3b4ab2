"""Checks before a plan or search starts that transformers builds each `config.json` model as its parameters were
counted.

A subprocess does the check while the command computes, because this process does not import torch. Answers are cached
in the user's cache folder. The check is skipped if transformers or torch is missing or the subprocess fails.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import IO

from platform.common import user_cache
from platform.common.checkout import ROOT
from platform.common.errors import InputError
from trainers.records.plain_files import read_plain
from trainers.spec.codec import json_object, to_json
from trainers.spec.model import ModelSpec

_READER = 3
"""Version of the question. Raise it when `trainers.models.build_check` checks something different."""
_LONGEST_S = 180.0
"""Longest wait for the subprocess in seconds; the check is skipped after it."""
ALONE = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
"""Environment that hides all devices and forbids downloads."""
_KIND = "built"
"""Subfolder of the user's cache that holds answers."""
_answers: dict[str, str] = {}
"""Answers of this process by key: why the model cannot be built, "" if it can."""


class BuildQuestion(contextlib.AbstractContextManager["BuildQuestion"]):
    """A running check of the models of `source`. Leaving the context kills an unfinished subprocess."""

    def __init__(self, models: Iterable[ModelSpec], source: str) -> None:
        stated = {key: spec for spec in models if spec.config and (key := _key(spec))}
        self._source, self._names = source, {key: spec.name for key, spec in stated.items()}
        for key in stated.keys() - _answers.keys():
            if (stored := _read(key)) is not None:
                _answers[key] = stored
        self._unanswered = [key for key in stated if key not in _answers]
        self._process: subprocess.Popen[bytes] | None = None
        if self._unanswered:
            with contextlib.suppress(OSError):  # the disk is full or no process can start: skip the check
                self._process, self._output = _start([stated[key] for key in self._unanswered])

    def check(self) -> None:
        """Waits for the subprocess.

        Raises:
            InputError: transformers cannot build one of the models, or builds another one.
        """
        if self._process is not None:
            self._collect(self._process)
        for key, name in self._names.items():
            if reason := _answers.get(key):
                model = f"{self._source} called {name}" if len(self._names) > 1 else self._source
                raise InputError(f"transformers does not build the model of {model}: {reason}")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._output.close()

    def _collect(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LONGEST_S)
        if process.poll() != 0:
            return
        self._output.seek(0)
        lines = self._output.read().splitlines()[-len(self._unanswered) :]
        for key, line in zip(self._unanswered, lines, strict=False):
            if (reason := _reason(line)) is not None:
                _answers[key] = reason
                _write(key, reason)


def _key(spec: ModelSpec) -> str:
    """Returns a hash of everything that an answer depends on; "" if transformers or torch is not installed."""
    try:
        versions = [importlib.metadata.version(package) for package in ("transformers", "torch")]
    except importlib.metadata.PackageNotFoundError:
        return ""
    counted = (spec.architecture, spec.parameters_per_layer, spec.embedding_parameters, spec.config)
    return hashlib.sha256(json.dumps([_READER, versions, counted]).encode()).hexdigest()


def _start(models: list[ModelSpec]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    output = tempfile.TemporaryFile()  # noqa: SIM115  closed by `BuildQuestion`
    with tempfile.TemporaryFile() as written:  # a pipe would block until the subprocess reads it
        written.write("".join(f"{json.dumps(to_json(spec))}\n" for spec in models).encode())
        written.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "trainers.models.build_check"],
            stdin=written,
            stdout=output,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **ALONE},
        )
    return process, output


def _reason(line: bytes) -> str | None:
    try:
        reason = json_object(line)["reason"]
    except (KeyError, ValueError):
        return None
    return reason if isinstance(reason, str) else None


def _read(key: str) -> str | None:
    try:
        return _reason(read_plain(user_cache.folder_of(_KIND) / f"{key}.json", links=True))
    except (InputError, RuntimeError):  # RuntimeError: the user has no home folder
        return None


def _write(key: str, reason: str) -> None:
    """Caches the answer; does nothing if the folder cannot be written."""
    with contextlib.suppress(OSError, RuntimeError):
        folder = user_cache.folder_of(_KIND)
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{key}.{os.getpid()}"
        part.write_text(json.dumps({"reason": reason}), encoding="utf-8")
        part.replace(folder / f"{key}.json")
