"""Trainings with the command's own parts on one Ray with two CPU workers: `python -m tests.training.trainings FOLDER`.

A process of its own, since Ray reads its settings at import. The exit codes and summaries stand in FOLDER/ended.json.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

import platform.train.__main__ as train  # pyright takes `from platform import` for the standard module
from platform.cluster.connection import connected
from platform.cluster.nodes import ClusterHandle
from platform.common import signals
from platform.common.signals import interruptible
from platform.train.summary import summary
from platform.train.training_session import opened, train_on
from tests.training.layout_file import write_layout
from tests.training.values import DDP, FSDP, STEP
from tests.whole_searches.session import listening
from trainers.records.training import Begun, Steps
from trainers.records.training_lines import Reader
from trainers.spec.layout import Layout

STEPS = 200


def main(folder: Path) -> None:
    """Runs the trainings one after the other."""
    # A command that was interrupted is killed if it runs on for so long; this process goes on with another training.
    signals.INTERRUPT_S = 3600.0
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
    """Records the sockets on which this process and its Ray listen, once step 40 is recorded."""
    _wait_for(folder)
    this = psutil.Process()
    sockets += sorted(listening([this, *this.children(recursive=True)]))


def kill_worker_and_stop(folder: Path, killed: list[int]) -> None:
    """Kills a worker of the training once step 40 is recorded, and sends SIGTERM to this process once the next attempt
    has trained 20 steps.
    """
    _wait_for(folder)
    workers = [
        child for child in psutil.Process().children(recursive=True) if "RayTrainWorker" in " ".join(child.cmdline())
    ]
    if workers:
        killed.append(workers[-1].pid)
        workers[-1].kill()
    _wait_for(folder, steps=20, attempt=2)
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for(folder: Path, steps: int = 40, attempt: int = 1) -> None:
    """Waits until the attempt has recorded this many steps."""
    reader, over, begun = Reader(folder / "training.jsonl"), threading.Event(), list[Begun]()
    while True:
        for record in reader.read():
            if isinstance(record, Begun):
                begun.append(record)
            elif isinstance(record, Steps) and len(begun) >= attempt and record.last_step >= begun[-1].step + steps:
                return
        over.wait(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
