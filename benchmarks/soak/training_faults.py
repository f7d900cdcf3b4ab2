"""The faults of a soak of trainings: each injects itself into a running training and returns whether it could."""

import contextlib
import dataclasses
import http.server
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from benchmarks.soak.faults import OF_PROCESSES, ProcessScene
from tests.disks import fill
from tests.training.checkpoint_damage import flip
from tests.whole_searches.session import Session
from trainers.records import checkpoints
from trainers.records.training_files import CHECKPOINTS


class TrainingScene(ProcessScene):
    """A session of a training with everything that its faults act on."""

    pause_s = (1.0, 6.0)

    def __init__(self, session: Session, folder: Path, rng: random.Random) -> None:
        super().__init__(session, rng)
        self.folder = folder
        self.damages = False
        """Whether the newest checkpoint is damaged once the session has ended."""
        self._undo: list[Callable[[], object]] = []

    def until_mended(self, undo: Callable[[], object]) -> None:
        """Calls `undo` after a random time, or at the end of the session."""
        self._undo.append(undo)
        self.let_pass(self.rng.uniform(*self.pause_s))
        self.mend()

    def mend(self) -> None:
        """Repairs what outlives a session."""
        while self._undo:
            self._undo.pop()()

    def after_end(self) -> None:
        """Damages the newest checkpoint, where a fault asks for it."""
        newest = None
        with contextlib.suppress(ValueError):
            newest = checkpoints.newest(self.folder / CHECKPOINTS) if self.damages else None
        if newest is not None and len(checkpoints.candidates(self.folder / CHECKPOINTS)) > 1:
            flip(self.rng.choice(sorted(newest.glob("rank-*"))))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingFault:
    """A fault."""

    inject: Callable[[TrainingScene], bool]
    code: int = 0
    """An exit code, besides those that a session may always have, with which it may end."""
    needs_root: bool = False


def _signal_group(number: signal.Signals) -> Callable[[TrainingScene], bool]:
    def inject(scene: TrainingScene) -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(scene.session.process.pid, number)
            return True
        return False

    return inject


def _pause_all(scene: TrainingScene) -> bool:
    processes = [psutil.Process(scene.session.process.pid), *scene.session.family()]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        if number == signal.SIGSTOP:
            scene.pause()
    return True


def _fill_disk(scene: TrainingScene) -> bool:
    filler = fill(scene.folder.parent)
    scene.until_mended(filler.unlink)
    return True


def _read_only(scene: TrainingScene) -> bool:
    folder = str(scene.folder)
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    scene.until_mended(lambda: subprocess.run(["umount", "--lazy", folder], check=True))
    return True


def _damage(scene: TrainingScene) -> bool:
    scene.damages = True
    return OF_PROCESSES["driver killed"](scene)


FAULTS: Mapping[str, TrainingFault] = {
    **{
        name: TrainingFault(inject=inject, code=-9 if name == "driver killed" else 0)
        for name, inject in OF_PROCESSES.items()
    },
    "SIGTERM to all": TrainingFault(inject=_signal_group(signal.SIGTERM)),
    "SIGINT to all": TrainingFault(inject=_signal_group(signal.SIGINT)),
    "all paused": TrainingFault(inject=_pause_all),
    "disk full": TrainingFault(inject=_fill_disk, needs_root=True),
    "folder read-only": TrainingFault(inject=_read_only, code=2, needs_root=True),
    "newest checkpoint damaged": TrainingFault(inject=_damage, code=-9),
}


class Unwell:
    """A server in place of MLflow's that answers 500 or 401, or late."""

    def __init__(self, rng: random.Random) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if (code := rng.choice((500, 401, 0))) == 0:
                    time.sleep(5)
                self.send_response(code or 503)
                self.end_headers()

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def end(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()
