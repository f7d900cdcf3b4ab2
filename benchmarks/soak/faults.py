"""The faults of a soak: each injects itself into a running search and returns whether it found its victim."""

import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.soak.clock import Clock
from tests.disks import fill
from tests.tracking.server import start_server
from tests.whole_searches.session import Session

_PAUSE_S = (5.0, 20.0)
"""Range of seconds for which a process is stopped before it continues."""
_VICTIM_S = 60.0
"""Seconds that a fault waits for its victim to start."""
_JUMPS_S = (86400, 3600, -3600, -86400)


class Server:
    """An MLflow server that can be killed, started again and stopped for a while."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self._port = listener.getsockname()[1]
        self.process = start_server(folder, self._port)

    @property
    def uri(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self._port}"

    def signal(self, number: signal.Signals) -> None:
        """Sends the signal to all of the server's processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def ensure(self) -> None:
        """Starts it again where it was killed."""
        if self.process.poll() is not None:
            self.process = start_server(self._folder, self._port)

    def end(self) -> None:
        """Kills it."""
        self.signal(signal.SIGKILL)
        self.process.wait()


class ProcessScene:
    """A running session whose processes are the victims of faults."""

    pause_s = _PAUSE_S
    """Range of seconds for which a victim is stopped."""

    def __init__(self, session: Session, rng: random.Random) -> None:
        self.session, self.rng = session, rng

    @property
    def runs(self) -> bool:
        """Whether the session still runs."""
        return self.session.process.poll() is None

    def let_pass(self, seconds: float) -> None:
        """Waits that long, or until the session ends."""
        self.wait_until(lambda: False, seconds)

    def wait_until(self, condition: Callable[[], object], within_s: float) -> bool:
        """Waits until `found` returns something; returns False where the time or the session ends before."""
        until_s = time.monotonic() + within_s
        while self.runs and time.monotonic() < until_s:
            if condition():
                return True
            time.sleep(0.05)
        return False

    def victims(self, *names: str) -> Sequence[psutil.Process]:
        """Returns the session's processes whose name or title has one of these, once there are any."""
        processes: list[psutil.Process] = []

        def look() -> bool:
            for process in self.session.family():
                with contextlib.suppress(psutil.Error, IndexError):
                    if process.name() in names or any(name in process.cmdline()[0] for name in names):
                        processes.append(process)
            return bool(processes)

        self.wait_until(look, _VICTIM_S)
        return processes

    def pause(self) -> None:
        """Waits for the random time in which the victim is stopped."""
        time.sleep(self.rng.uniform(*self.pause_s))


class Scene(ProcessScene):
    """A session of a search with everything that its faults act on."""

    def __init__(self, session: Session, disk: Path, server: Server, clock: Clock | None, rng: random.Random) -> None:
        super().__init__(session, rng)
        self.disk, self.server, self.clock = disk, server, clock
        self._filler: Path | None = None

    def fill_disk(self) -> None:
        """Fills the studies' disk."""
        self._filler = fill(self.disk)

    def mend(self) -> None:
        """Repairs what outlives a session: the full disk, the clock, the server."""
        if self._filler is not None:
            self._filler.unlink()
        if self.clock is not None:
            self.clock.jump(0)
        self.server.signal(signal.SIGCONT)
        self.server.ensure()


Fault = Callable[[Scene], bool]
ProcessFault = Callable[[ProcessScene], bool]


def _kill(*names: str) -> ProcessFault:
    def fault(scene: ProcessScene) -> bool:
        victims = scene.victims(*names)
        with contextlib.suppress(psutil.NoSuchProcess):
            if victims:
                scene.rng.choice(victims).kill()
                return True
        return False

    return fault


def _stop(*names: str, goes_on: bool) -> ProcessFault:
    def fault(scene: ProcessScene) -> bool:
        victims = scene.victims(*names)
        with contextlib.suppress(psutil.NoSuchProcess):
            if victims:
                victim = scene.rng.choice(victims)
                victim.suspend()
                if goes_on:
                    scene.pause()
                    victim.resume()
                return True
        return False

    return fault


def _kill_driver(scene: ProcessScene) -> bool:
    scene.session.kill()
    return True


def _stop_driver(scene: ProcessScene) -> bool:
    scene.session.process.send_signal(signal.SIGSTOP)
    scene.pause()
    scene.session.process.send_signal(signal.SIGCONT)
    return True


def _fill_disk(scene: Scene) -> bool:
    scene.fill_disk()
    return True


def _jump_clock(scene: Scene) -> bool:
    if scene.clock is not None:
        scene.clock.jump(scene.rng.choice(_JUMPS_S))
    return scene.clock is not None


def _kill_mlflow(scene: Scene) -> bool:
    scene.server.end()
    return True


def _stop_mlflow(scene: Scene) -> bool:
    scene.server.signal(signal.SIGSTOP)
    scene.pause()
    scene.server.signal(signal.SIGCONT)
    return True


WORKER, RECORDER, TUNE = "RayTrainWorker", "Recorder", "ImplicitFunc"
OF_PROCESSES: Mapping[str, ProcessFault] = {
    "worker killed": _kill(WORKER),
    "worker paused": _stop(WORKER, goes_on=True),
    "driver killed": _kill_driver,
    "driver paused": _stop_driver,
    "raylet killed": _kill("raylet"),
    "head killed": _kill("gcs_server"),
}
"""The faults that a training meets too."""
FAULTS: Mapping[str, Fault] = {
    **OF_PROCESSES,
    "worker stopped": _stop(WORKER, goes_on=False),
    "raylet stopped": _stop("raylet", goes_on=False),
    "recorder killed": _kill(RECORDER),
    "Tune's process killed": _kill(TUNE),
    "Tune's process paused": _stop(TUNE, goes_on=True),
    "disk full": _fill_disk,
    "clock jumps": _jump_clock,
    "MLflow killed": _kill_mlflow,
    "MLflow paused": _stop_mlflow,
}


class Deck:
    """Faults in an endless random order, each once before any repeats."""

    def __init__(self, names: Sequence[str], rng: random.Random) -> None:
        self._names, self._rng = tuple(names), rng
        self._remaining: list[str] = []

    def draw(self) -> str:
        """Returns the next fault's name."""
        if not self._remaining:
            self._remaining = self._rng.sample(self._names, len(self._names))
        return self._remaining.pop()
