"""Asks transformers, before anything is promised, whether it builds each model of a `config.json` as it was counted.

A process of its own is asked, beside what the command computes meanwhile: torch is not imported here. Answers are kept
in the user's cache. Where transformers or torch is not installed, or does not answer, nothing is said.
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

_READER = 2
"""Version of what is asked: raised where `trainers.models.build_check` asks something else."""
_LONGEST_S = 180.0
"""Longest wait for an answer; a machine that takes longer gets none."""
ALONE = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
"""Environment in which no device is touched and nothing is downloaded."""
_KIND = "built"
"""The kind of files in the user's cache that hold answers."""
_answers: dict[str, str] = {}
"""Reasons by key, of this process."""


class BuildQuestion(contextlib.AbstractContextManager["BuildQuestion"]):
    """A question to transformers about the models of `source`; leaving it ends a process that was not waited for."""

    def __init__(self, models: Iterable[ModelSpec], source: str) -> None:
        stated = {key: spec for spec in models if spec.config and (key := _key(spec))}
        self._source, self._names = source, {key: spec.name for key, spec in stated.items()}
        for key in stated.keys() - _answers.keys():
            if (stored := _read(key)) is not None:
                _answers[key] = stored
        self._unanswered = [key for key in stated if key not in _answers]
        self._process: subprocess.Popen[bytes] | None = None
        if self._unanswered:
            with contextlib.suppress(OSError):  # no room for a file, or for a process
                self._process, self._output = _start([stated[key] for key in self._unanswered])

    def check(self) -> None:
        """Waits for the answer.

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
    """Returns what an answer depends on, as a hash; empty where transformers or torch is not installed."""
    try:
        versions = [importlib.metadata.version(package) for package in ("transformers", "torch")]
    except importlib.metadata.PackageNotFoundError:
        return ""
    counted = (spec.architecture, spec.parameters_per_layer, spec.embedding_parameters, spec.config)
    return hashlib.sha256(json.dumps([_READER, versions, counted]).encode()).hexdigest()


def _start(models: list[ModelSpec]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    output = tempfile.TemporaryFile()  # noqa: SIM115  closed by `BuildQuestion`
    with tempfile.TemporaryFile() as written:  # a pipe would wait for the process to begin reading
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
    except (InputError, RuntimeError):  # RuntimeError: there is no home
        return None


def _write(key: str, reason: str) -> None:
    """Keeps the answer, or does not where the folder cannot be written."""
    with contextlib.suppress(OSError, RuntimeError):
        folder = user_cache.folder_of(_KIND)
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{key}.{os.getpid()}"
        part.write_text(json.dumps({"reason": reason}), encoding="utf-8")
        part.replace(folder / f"{key}.json")
