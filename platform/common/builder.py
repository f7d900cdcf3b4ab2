"""Asks transformers, before anything is promised, whether it builds the model of a `config.json` as it was counted.

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
from pathlib import Path
from typing import IO

from platform.common.checkout import ROOT
from platform.common.errors import InputError
from trainers.records.plain_files import read_plain
from trainers.spec.codec import json_object, to_json
from trainers.spec.model import ModelSpec

_READER = 1
"""Version of what is asked: raised where `trainers.models.build_check` asks something else."""
_LONGEST_S = 180.0
"""Longest wait for an answer; a machine that takes longer gets none."""
_ALONE = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
"""Environment in which no device is touched and nothing is downloaded."""
_answers: dict[str, str] = {}
"""Reasons by key, of this process."""


class BuildQuestion(contextlib.AbstractContextManager["BuildQuestion"]):
    """A question to transformers about one model; leaving it ends a process that was not waited for."""

    def __init__(self, spec: ModelSpec, source: str) -> None:
        self._source, self._key = source, _key(spec) if spec.config else ""
        self._process: subprocess.Popen[bytes] | None = None
        if self._key and self._key not in _answers:
            if (stored := _read(self._key)) is None:
                self._process, self._output = _start(spec)
            else:
                _answers[self._key] = stored

    def check(self) -> None:
        """Waits for the answer.

        Raises:
            InputError: transformers cannot build the model, or builds another one.
        """
        if self._process is not None:
            self._collect(self._process)
        if reason := _answers.get(self._key):
            raise InputError(f"transformers does not build the model of {self._source}: {reason}")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._output.close()

    def _collect(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LONGEST_S)
        self._output.seek(0)
        reason = _reason(self._output.read().splitlines()[-1:]) if process.poll() == 0 else None
        if reason is not None:
            _answers[self._key] = reason
            _write(self._key, reason)


def _key(spec: ModelSpec) -> str:
    """Returns what an answer depends on, as a hash; empty where transformers or torch is not installed."""
    try:
        versions = [importlib.metadata.version(package) for package in ("transformers", "torch")]
    except importlib.metadata.PackageNotFoundError:
        return ""
    counted = (spec.architecture, spec.parameters_per_layer, spec.embedding_parameters, spec.config)
    return hashlib.sha256(json.dumps([_READER, versions, counted]).encode()).hexdigest()


def _start(spec: ModelSpec) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    output = tempfile.TemporaryFile()  # noqa: SIM115  closed by `BuildQuestion`
    with tempfile.TemporaryFile() as model:  # a pipe would wait for the process to begin reading
        model.write(json.dumps(to_json(spec)).encode())
        model.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "trainers.models.build_check"],
            stdin=model,
            stdout=output,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **_ALONE},
        )
    return process, output


def _reason(lines: list[bytes]) -> str | None:
    try:
        reason = json_object(lines[0])["reason"]
    except (IndexError, KeyError, ValueError):
        return None
    return reason if isinstance(reason, str) else None


def _folder() -> Path:
    """Returns the folder of answers in the user's cache."""
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = stated if stated.is_absolute() else Path("~/.cache").expanduser()
    return cache / "layout-search" / "built"


def _read(key: str) -> str | None:
    try:
        return _reason([read_plain(_folder() / f"{key}.json", links=True)])
    except (InputError, RuntimeError):  # RuntimeError: there is no home
        return None


def _write(key: str, reason: str) -> None:
    """Keeps the answer, or does not where the folder cannot be written."""
    with contextlib.suppress(OSError, RuntimeError):
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{key}.{os.getpid()}"
        part.write_text(json.dumps({"reason": reason}), encoding="utf-8")
        part.replace(folder / f"{key}.json")
