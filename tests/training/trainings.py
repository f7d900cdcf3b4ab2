"""Trainings with the command's own parts on one Ray with two CPU workers: `python -m tests.training.trainings FOLDER`.

A process of its own, since Ray reads its settings at import. The exit codes and summaries stand in FOLDER/ended.json.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator
from pathlib import Path
from typing import Any

import psutil

import platform.train.__main__ as train  # pyright takes `from platform import` for the standard module
from platform.cluster.connection import connected
from platform.cluster.nodes import ClusterHandle
from platform.common import signals
from platform.common.signals import interruptible
from platform.train import mlflow_run
from platform.train.summary import summary
from platform.train.training_session import opened, train_on
from tests.training.layout_file import write_layout
from tests.training.values import DDP, FSDP, STEP
from tests.whole_searches.session import listening
from trainers.records.training import Begun, Record, Saved, Steps
from trainers.records.training_files import STOP
from trainers.records.training_lines import Reader
from trainers.spec.layout import Layout

STEPS = 200


def main(folder: Path) -> None:
    """Runs the trainings one after the other."""
    # A command that was interrupted is killed if it runs on for so long; this process goes on with another training.
    signals.INTERRUPT_S = 3600.0
    mlflow_run.LAST_WAIT_S = 600.0  # what MLflow holds is asked, not how soon it does on a busy machine
    ended: dict[str, Any] = {}
    with interruptible(), connected("local", cpu_workers=2) as handle:  # as the command does
        sockets: list[tuple[str, str]] = []
        ended["whole"] = beside(listen_after, (folder / "whole", sockets), handle, folder, "whole")
        ended["listening"] = sockets
        ended["whole again"] = run(handle, folder, "whole")
        killed: list[int] = []
        ended["stopped"] = beside(kill_worker_and_stop, (folder / "moved", killed), handle, folder, "moved")
        ended["killed pids"] = killed
        ended["moved"] = run(handle, folder, "moved", FSDP)
    (folder / "ended.json").write_text(json.dumps(ended))


def beside(disturb: Any, arguments: tuple[Any, ...], handle: ClusterHandle, folder: Path, name: str) -> tuple[int, Any]:
    """Runs a training with `disturb` in a parallel thread."""
    thread = threading.Thread(target=disturb, args=arguments, daemon=True)
    thread.start()
    result = run(handle, folder, name)
    thread.join(10)
    return result


def run(handle: ClusterHandle, folder: Path, name: str, layout: Layout = DDP) -> tuple[int, dict[str, Any]]:
    """Runs the training as the command does; returns the command's exit code and its summary."""
    target = write_layout(folder / f"{name}.json", layout)
    arguments = ["--tokens", str(STEPS * STEP), "--out", str(folder / name), "--studies", str(folder)]
    options = train.PARSER.read([str(target), *arguments, "--checkpoint-steps", "20", "--val-tokens", "160"])
    with opened(options) as training:
        code = 0 if training.is_complete else train_on(handle, training)
        return code, dict(summary(training.folder, training.plan))


def listen_after(folder: Path, sockets: list[tuple[str, str]]) -> None:
    """Records the sockets on which this process and its Ray listen during the training."""
    workers = _new_workers()
    _wait_for(folder, lambda record: isinstance(record, Begun))
    with _standing_still(workers):
        this = psutil.Process()
        sockets += sorted(listening([this, *this.children(recursive=True)]))


def kill_worker_and_stop(folder: Path, killed: list[int]) -> None:
    """Kills a worker of the training once a checkpoint is saved, and sends SIGTERM to this process once the next
    attempt has trained 20 steps.
    """
    first = _new_workers()
    _wait_for(folder, lambda record: isinstance(record, Saved))
    first[-1].kill()
    killed.append(first[-1].pid)
    second = _new_workers(but=first)
    steps: list[int] = []

    def is_far(record: Record) -> bool:
        if isinstance(record, Steps) and record.attempt == 2:
            steps.extend(range(record.first_step, record.last_step + 1))
        return len(steps) >= 20

    _wait_for(folder, is_far)
    with _standing_still(second):
        os.kill(os.getpid(), signal.SIGTERM)
        until_s = time.monotonic() + 300
        while not (folder / STOP).exists() and time.monotonic() < until_s:
            time.sleep(0.02)


def _new_workers(but: Collection[psutil.Process] = ()) -> list[psutil.Process]:
    """Waits for the two workers of an attempt, which are there seconds before its first step, and returns them.

    A look at all processes takes longer than many steps of a small model, so none may be needed during the steps.
    """
    while True:
        workers: list[psutil.Process] = []
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):  # one that ends just now
                if "RayTrainWorker" in " ".join(child.cmdline()) and child not in but:
                    workers.append(child)
        if len(workers) == 2:
            return workers
        time.sleep(0.02)


@contextlib.contextmanager
def _standing_still(workers: Collection[psutil.Process]) -> Generator[None]:
    """Suspends the workers meanwhile: what is left of a small model's training is soon over."""
    for worker in workers:
        worker.suspend()
    try:
        yield
    finally:
        for worker in workers:
            worker.resume()


def _wait_for(folder: Path, event: Callable[[Record], bool]) -> None:
    """Reads the training's records until `event` is true of one."""
    reader = Reader(folder / "training.jsonl")
    while not any(event(record) for record in reader.read()):
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
