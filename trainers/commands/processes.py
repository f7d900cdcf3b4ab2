"""The processes of one run of a command: started, looked at while they run, and ended together."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainers.commands import supervisor
from trainers.commands.steps import text_of
from trainers.host.abandoned import RUN_MARK
from trainers.host.failures import GIB

STEPS = "LAYOUT_SEARCH_STEPS"
"""Environment variable that names the file for lines of steps."""
_OUT = "out"
_RAYS_MODULES = "/runtime_resources/"
"""Part of the paths under which Ray unpacks the job's code."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class CommandProcesses:
    """A running command with a folder for its output; end it with `close`, which kills its processes and removes the
    folder.
    """

    def __init__(
        self, words: Sequence[str], *, folder: str, scratch: Path, gpus: int, environment: Mapping[str, str | None]
    ) -> None:
        """Starts the command with this process's visible GPUs and initial environment; `environment` replaces values,
        None removes a variable.

        Raises:
            OSError: the folder is missing, or no process can be started.
        """
        self._scratch, self._mark = scratch, uuid.uuid4().hex
        self.log, self.steps = scratch / "log", scratch / "steps.jsonl"
        ours = {RUN_MARK: self._mark, STEPS: str(self.steps), "PYTHONUNBUFFERED": "1"}
        if gpus:
            ours["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        variables = {**_first_environment(), **environment, **ours}
        self._memory = _Gpus() if gpus else None
        self.steps.touch()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", supervisor.__file__, self._mark, str(scratch), *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder or None,
                env={name: value for name, value in variables.items() if value is not None},
            )

    @staticmethod
    def new_scratch() -> Path:
        """Returns a new folder for a run, with an empty one inside for the command's own output."""
        scratch = Path(tempfile.mkdtemp(prefix="layout-search-run-"))
        out_of(scratch).mkdir()
        return scratch

    def exit_code(self) -> int | None:
        """Returns the command's exit code, above 128 for a signal; None while it runs."""
        return self._process.poll()

    def memory_gib(self) -> float | None:
        """Returns the GiB that the processes hold now: of the fullest GPU, or together where there is none."""
        pids = supervisor.of_command(self._mark, self._process.pid)
        if self._memory is not None:
            return self._memory.fullest_gib(pids)
        return sum(map(_resident_gib, pids))

    def text(self) -> str:
        """Returns all that the command printed, without colours."""
        return text_of(self.log.read_bytes())

    def close(self) -> None:
        """Ends all processes and removes the run's folder."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10 * supervisor.GRACE_S)
        shutil.rmtree(self._scratch, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def out_of(scratch: Path) -> Path:
    """Returns the folder that fills a command's hole `{out}`."""
    return scratch / _OUT


def environment_at_start() -> dict[str, str]:
    """Returns the environment with which this process began; later changes, such as Ray's number of threads for a
    worker, do not belong to the command.
    """
    pairs = Path("/proc/self/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _first_environment() -> dict[str, str]:
    """Returns the initial environment without Ray's variables and modules, with the programs beside this Python last on
    the path.
    """
    values = {name: value for name, value in environment_at_start().items() if not name.startswith("RAY_")}
    modules = [path for path in values.pop("PYTHONPATH", "").split(":") if path and _RAYS_MODULES not in path]
    values["PATH"] = f"{values.get('PATH', os.defpath)}:{Path(sys.executable).parent}"
    return values | ({"PYTHONPATH": ":".join(modules)} if modules else {})


def _resident_gib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / GIB
    except (OSError, IndexError):  # it has ended
        return 0.0


class _Gpus:
    """The memory of the GPUs that are visible here."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[Any] = []
        with contextlib.suppress(Exception):  # without a driver's figures a run is measured all the same
            import pynvml

            pynvml.nvmlInit()
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            self._devices = [_handle(pynvml, name.strip()) for name in visible if name.strip()]
            self._nvml = pynvml
        self._before = [self._used(device) for device in self._devices]

    def fullest_gib(self, pids: Sequence[int]) -> float | None:
        """Returns the GiB of these processes on the GPU on which they hold most; if a container hides their ids from
        the driver, the growth since the start.
        """
        if self._nvml is None or not self._devices:
            return None
        held: list[float] = []
        for device, before in zip(self._devices, self._before, strict=True):
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
            sizes = [process.usedGpuMemory or 0 for process in processes if process.pid in pids]
            held.append(sum(sizes) if sizes else max(0, self._used(device) - before))
        return max(held) / GIB

    def _used(self, device: Any) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(device).used)


def _handle(nvml: Any, name: str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
