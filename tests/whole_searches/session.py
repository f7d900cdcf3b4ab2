"""The search as a user starts it: a process of its own whose journal a test follows."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from platform.study.journal import Tail
from trainers.host.abandoned import end_abandoned
from trainers.records.journal import Line

ROOT = Path(__file__).parents[2]
LONGEST_S = 1800.0
"""Seconds that one session may take on a shared machine; alone it takes a tenth."""
_GONE_S = 300.0
"""Seconds that everything a session started may take to end after it; a worker that only starts notices late."""
LATE = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Processes that wait a minute for their Ray after a SIGKILL of the driver, by Ray's own setting. They hold nothing."""
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))},
    "CUDA_VISIBLE_DEVICES": "",  # two CPU workers, on machines with GPUs too
}
"""The environment without the shell's settings for Ray and MLflow."""

SPACE = """
from search_spaces.space import Space
from trainers.spec.recipe import Recipe
from trainers.spec.model import ModelSpec


def space():
    model = ModelSpec(
        name="tiny",
        architecture="gpt2",
        num_layers={num_layers},
        hidden_size={hidden_size},
        num_heads=2,
        vocab_size={vocab_size},
        max_positions=1024,
    )
    return Space(
        name="{name}",
        summary="a small model on CPU workers",
        recipe=Recipe(
            model=model,
            seq_len={seq_len},
            global_batch={global_batch},
            compute_precision="fp32",
            learning_rate=1e-3,
        ),
        axes={axes},
        micro_batches={micro_batches},
        refine=False,
        repeats={repeats},
        num_workers={num_workers},
        hang_floor_s={hang_floor_s},
        first_step_s={first_step_s},
    )
"""


def write_space(path: Path, **fields: Any) -> Path:
    """Writes a space file with a model of one layer; `fields` replace the values here."""
    defaults: dict[str, Any] = {
        "name": path.stem,
        "num_layers": 1,
        "hidden_size": 32,
        "vocab_size": 256,
        "seq_len": 16,
        "global_batch": 4,
        "micro_batches": (1, 2),
        "axes": {"engine": ("ddp",)},
        "repeats": 0,
        "num_workers": 2,
        "hang_floor_s": 60.0,
        "first_step_s": 300.0,
    }
    path.write_text(SPACE.format(**{**defaults, **fields}))
    return path


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """The end of a session and what the session printed."""

    code: int
    out: str
    err: str
    worker_niceness: frozenset[int] = frozenset()
    """Priorities of its train workers: 0 is that of the command itself."""
    titles: frozenset[str] = frozenset()
    """Titles of its processes, such as "ray::RayTrainWorker"; a short-lived one may be missed."""

    @property
    def object(self) -> dict[str, Any]:
        """The JSON object that `--json` printed on standard output."""
        return json.loads(self.out)


class Session:
    """A search that runs. Use it with `with`, which ends what it left running, and nothing else."""

    def __init__(
        self,
        log: Path,
        journal: Path,
        *argv: str,
        environment: Mapping[str, str] | None = None,
        before: Callable[[], object] = lambda: None,
        module: str = "platform.search",
    ) -> None:
        """Starts the search, or another command; `environment` is added to its own, and `before` is called in its
        process before it becomes the search.
        """
        log.mkdir(parents=True)
        self.log = log
        self.journal = journal
        self._processes: set[psutil.Process] = set()  # another thread may add to it: see `leaks.Accounts`
        self._train_workers: set[psutil.Process] = set()
        self._titles: set[str] = set()
        self._worker_niceness: set[int] = set()
        command = [sys.executable, "-m", module, *argv]

        def first() -> None:
            # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            before()

        with (log / "out").open("w") as out, (log / "err").open("w") as err:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**ENVIRONMENT, **(environment or {})},
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=first,
            )

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.family()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for process in list(self._processes):
            if lives(process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        end_abandoned()  # of a command whose supervisor was among them

    def family(self) -> list[psutil.Process]:
        """Returns every process that descends from the search now."""
        try:
            processes = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            processes = []
        self._processes.update(processes)
        for process in processes:
            with contextlib.suppress(psutil.Error, IndexError):
                title = process.cmdline()[0]
                self._titles.add(title)
                if "RayTrainWorker" in title:
                    self._train_workers.add(process)
                    self._worker_niceness.add(process.nice())
        return processes

    def workers(self, kinds: Collection[str] = ("RayTrainWorker",)) -> list[psutil.Process]:
        """Returns the train workers of the running trial, or its actors of other kinds, in the order of their start."""
        processes: list[tuple[float, psutil.Process]] = []
        for process in self.family():
            with contextlib.suppress(psutil.Error, IndexError):  # one that ends just now
                if any(kind in process.cmdline()[0] for kind in kinds):
                    processes.append((process.create_time(), process))
        return [process for _, process in sorted(processes, key=lambda item: item[0])]

    def lines(self) -> Sequence[Line]:
        """Returns the lines of its journal now."""
        return Tail(self.journal).read()

    def wait_for(self, event: str, condition: Callable[[Sequence[Line]], Any]) -> Any:
        """Follows the journal until `condition` of its lines returns something, and returns that."""
        until_s = time.monotonic() + LONGEST_S
        tail, lines = Tail(self.journal), list[Line]()
        looked_s = 0.0
        while True:
            over = self.process.poll() is not None
            if time.monotonic() > looked_s + 1:  # here, so that what follows need not: a rung is soon over
                self.family()
                looked_s = time.monotonic()
            lines += tail.read()
            if result := condition(lines):
                return result
            assert not over, f"it ended without {event}: {self.text('err')}"
            assert time.monotonic() < until_s, f"no {event} within {LONGEST_S} s: {self.text('err')}"
            time.sleep(0.02)

    @contextlib.contextmanager
    def standing_still(self) -> Generator[None]:
        """Suspends its train workers meanwhile.

        It suspends those that `wait_for` saw last, without looking for others first: a rung of a small model is over
        within the second that a look at all processes takes on a busy machine.
        """
        workers = {worker for worker in self._train_workers if lives(worker)}
        assert workers, "no train worker was seen"
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                worker.suspend()
        try:
            yield
        finally:
            for worker in workers:
                with contextlib.suppress(psutil.Error):  # one that was about to end
                    worker.resume()

    def listening(self) -> frozenset[tuple[str, str]]:
        """Returns the sockets on which its processes listen for connections: see `listening`."""
        return listening([psutil.Process(self.process.pid), *self.family()])

    def interrupt(self) -> None:
        """Sends Ctrl-C, as a terminal does, to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """Sends SIGKILL to the driver alone: it can print and write nothing more."""
        self.process.kill()

    def end(self) -> Ended:
        """Waits for the end of the search and checks that all processes that it started end soon after; returns the
        end.
        """
        until_s = time.monotonic() + LONGEST_S
        while self.process.poll() is None:
            assert time.monotonic() < until_s, f"no end within {LONGEST_S} s: {self.text('err')}"
            self.family()
            time.sleep(0.3)
        until_s = time.monotonic() + _GONE_S
        while leftover := [process for process in list(self._processes) if _name(process) not in ("", *LATE)]:
            assert time.monotonic() < until_s, f"processes were left behind: {leftover}"
            time.sleep(0.1)
        return Ended(
            code=self.process.returncode,
            out=self.text("out"),
            err=self.text("err"),
            worker_niceness=frozenset(self._worker_niceness),
            titles=frozenset(self._titles),
        )

    def text(self, stream: str) -> str:
        """Returns what it printed so far."""
        return (self.log / stream).read_text()


LOOPBACK = frozenset({"127.0.0.1", "::1"})


def listening(processes: Iterable[psutil.Process]) -> frozenset[tuple[str, str]]:
    """Returns the sockets on which the processes listen for connections, as (process, address without the port)."""
    addresses: set[tuple[str, str]] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            sockets = [item for item in process.net_connections("inet") if item.status == psutil.CONN_LISTEN]
            addresses |= {(process.name(), each_socket.laddr.ip.removeprefix("::ffff:")) for each_socket in sockets}
    return frozenset(addresses)


def beyond_loopback(addresses: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns those of the sockets that other machines can reach."""
    return sorted(address for address in addresses if address[1] not in LOOPBACK)


def _name(process: psutil.Process) -> str:
    """Returns the name of a running process; "" for one that has ended or ends now."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name() if lives(process) else ""
    return ""


def lives(process: psutil.Process) -> bool:
    """Returns whether it runs, and does not only wait for its parent to collect its exit code."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
