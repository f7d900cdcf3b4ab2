"""Signals to all processes of a training, as `timeout`, SLURM and terminals send them: it saves a checkpoint."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from platform.train.training_folder import TrainingFolder
from tests.training.environment import ENVIRONMENT
from tests.training.layout_file import write_layout
from tests.training.values import RECIPE
from trainers.records import checkpoints
from trainers.records.training import Saving, Steps
from trainers.records.training_lines import Reader

pytestmark = [pytest.mark.ray, pytest.mark.heavy]

ROOT = Path(__file__).parents[2]


def interrupted(
    folder: Path,
    after: type[Steps] | type[Saving] | float,
    numbers: Sequence[int],
    *options: str,
    hidden: int = 64,
    without_head: bool = False,
) -> tuple[int, str, float]:
    """Returns exit code, output and seconds after the first signal of a training whose group gets the signals, half a
    second apart, once there is such a record, or after so many seconds; `without_head`, just after Ray's head was
    killed.
    """
    model = dataclasses.replace(RECIPE.model, hidden_size=hidden, num_layers=4, ffn_size=4 * hidden, vocab_size=8192)
    write_layout(folder / "layout.json", recipe=dataclasses.replace(RECIPE, model=model))
    command = [
        sys.executable,
        "-m",
        "platform.train",
        str(folder / "layout.json"),
        "--tokens",
        "10M",
        "--out",
        str(folder / "training"),
        "--studies",
        str(folder),
        "--address",
        "local",
        "--val-tokens",
        "0",
        *options,
    ]
    reader = Reader(folder / "training" / "training.jsonl")
    with subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    ) as process:  # fmt: skip
        try:
            if isinstance(after, (int, float)):
                time.sleep(after)
            else:
                while not any(isinstance(record, after) for record in reader.read()):
                    assert process.poll() is None
                    time.sleep(0.02)
                assert not _in_group(process.pid), "they end at the signal, before the command has"
            if without_head:
                _head_of(process.pid).kill()
            began_s = time.monotonic()
            for place, number in enumerate(numbers):
                time.sleep(0.5 * (place > 0))
                os.killpg(process.pid, number)
            output, _ = process.communicate(timeout=600)
        finally:
            process.kill()
    return process.returncode, output, time.monotonic() - began_s


def _head_of(pid: int) -> psutil.Process:
    (head,) = (child for child in psutil.Process(pid).children(recursive=True) if child.name() == "gcs_server")
    return head


def _in_group(pid: int) -> list[str]:
    """Returns the names of the children of a process that get signals to its group."""
    children = psutil.Process(pid).children(recursive=True)
    return [child.name() for child in children if child.is_running() and os.getpgid(child.pid) == pid]


def left(folder: Path) -> list[int]:
    """Returns the processes that still name the folder."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or [])
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_in_a_step_a_checkpoint_is_saved(tmp_path: Path, number: int) -> None:
    code, output, _ = interrupted(tmp_path, Steps, [number, number])
    assert code == 130, output
    assert "Interrupted: the training saves its first checkpoint and ends; a second interrupt ends it" in output
    assert TrainingFolder(tmp_path / "training").tokens_saved() > 0 and "the same command resumes it from" in output
    assert not left(tmp_path)


def test_a_checkpoint_that_is_being_written_is_followed_by_a_last_one(tmp_path: Path) -> None:
    """Checks an end that takes longer. Formerly Ray's processes took the signal too: the driver took their end for a
    fault, 17 s after the signal, and whatever was not saved by then was lost.
    """
    code, output, _ = interrupted(tmp_path, Saving, [signal.SIGTERM], "--checkpoint-steps", "1", hidden=768)
    newest = TrainingFolder(tmp_path / "training").newest_checkpoint()
    assert code == 130 and newest is not None and checkpoints.step_of(newest) >= 2, output
    assert "MiB written) and ends; a second interrupt" in output and not left(tmp_path)


def test_a_grace_that_is_too_short_is_said_and_kept(tmp_path: Path) -> None:
    code, output, seconds = interrupted(
        tmp_path, Saving, [signal.SIGTERM], "--checkpoint-steps", "1", "--grace", "0.1", hidden=768
    )
    assert code == 130 and "if that takes less than the" in output, output
    assert "The time for a checkpoint is over: the training ends without it." in output
    assert seconds < 60 and not left(tmp_path)


def test_it_is_interrupted_though_the_head_was_lost(tmp_path: Path) -> None:
    """Checks the exit code: to leave a head that is gone, Ray by itself ends the process with 1."""
    code, output, _ = interrupted(tmp_path, Saving, [signal.SIGINT], "--checkpoint-steps", "1", without_head=True)
    assert code == 130 and "has not answered for" in output, output
    assert "the same command resumes it from" in output and not left(tmp_path)


@pytest.mark.parametrize("after_s", [2.0, 6.0])
def test_at_its_start_a_sentence_ends_it(tmp_path: Path, after_s: float) -> None:
    code, output, _ = interrupted(tmp_path, after_s, [signal.SIGTERM, signal.SIGTERM])
    assert code == 130 and "Interrupted: the same command resumes." in output and not left(tmp_path), output
