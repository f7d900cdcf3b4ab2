"""Removes what a killed driver left, found by the ids in its note, when its study is resumed.

A driver writes a note of its resources on this machine and the cluster into its study's folder, and removes it when it
ends normally. Our own Ray is identified by its session folder: a process belongs to it if its command names the folder
or it has a file of the folder open. On a shared cluster only the study's own job is affected.
"""

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

import psutil

from platform.common.errors import InputError
from platform.common.text import plural
from platform.study.atomic_write import replacing
from trainers.records.plain_files import read_json
from trainers.spec.codec import from_json, to_json

NOTE = "running.json"
SCRATCH = "layout-search-"
"""Prefix of the name of a driver's temporary folder."""
_CLAIM = ("layout-search-", ".json")
"""Begin and end of the name of a claim: a file beside Ray's sessions that marks those of one driver."""
_SHARED_MEMORY = Path("/dev/shm")
_GONE_S = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """The resources of a running driver."""

    host: str = dataclasses.field(default_factory=socket.gethostname)
    boot: str = dataclasses.field(default_factory=lambda: boot())
    """Id of the machine's present boot; process ids of an earlier boot are meaningless."""
    ray_session: str = ""
    """The session folder of a Ray that the driver started; "" on a cluster that existed before."""
    cluster: str = ""
    """Ray's name of the cluster's session; a cluster restarted at the same address has another one."""
    job_id: str = ""
    """Ray's id of the driver's job, in hex."""
    scratch: str = ""
    """The driver's temporary folder."""


def write_note(study: Path, running: Note) -> None:
    """Writes the note into the study's folder.

    Raises:
        InputError: the file cannot be written.
    """
    with replacing(study / NOTE) as part:
        part.write_text(json.dumps(to_json(running)) + "\n", encoding="utf-8")


def remove_note(study: Path) -> None:
    (study / NOTE).unlink(missing_ok=True)


def read_note(study: Path) -> Note | None:
    """Returns the note of a killed driver; None if the last driver ended normally. The study's lock must be held."""
    try:
        return from_json(Note, read_json(study / NOTE))
    except ValueError:
        return None


def sweep(note: Note) -> str:
    """Removes a killed driver's resources from this machine; returns a sentence about them, "" if there were none."""
    if (note.host, note.boot) != (socket.gethostname(), boot()):
        return ""
    removed: list[str] = []
    if note.ray_session:
        processes, entries = _sweep_session(Path(note.ray_session))
        removed += [f"{processes} process{'' if processes == 1 else 'es'}"] if processes else []
        removed += [plural(entries, "shared-memory segment")] if entries else []
    scratch = Path(note.scratch)
    if scratch.name.startswith(SCRATCH) and scratch.is_dir() and scratch.stat().st_uid == os.getuid():
        shutil.rmtree(scratch, ignore_errors=True)
        removed.append("a temporary folder")
    return f"Removed from this machine what the killed search left: {', '.join(removed)}." if removed else ""


def claim() -> Path:
    """Marks the Ray sessions that this process starts from now on, so that a later driver can remove them; returns the
    file, for `end_claimed`.

    Raises:
        OSError: the file cannot be written.
    """
    folder = _ray_folder()
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)  # as Ray makes it, for other users too
    before = [session.name for session in folder.glob(f"session_*_{os.getpid()}")]
    path = folder / secrets.token_hex(4).join(_CLAIM)
    path.write_text(json.dumps({"pid": os.getpid(), "boot": boot(), "before": before}), encoding="utf-8")
    return path


def end_claimed(claimed: Path, *, keeps_logs: bool = False) -> None:
    """Ends the remaining processes of the sessions that a claim marks; removes their folders and the claim, unless
    `keeps_logs`.
    """
    with contextlib.suppress(InputError, KeyError):  # removed or overwritten meanwhile
        owner = read_json(claimed)
        for session in claimed.parent.glob(f"session_*_{int(owner['pid'])}"):
            if session.name not in owner["before"] and _is_ours(session):
                _sweep_session(session)
                if not keeps_logs:
                    shutil.rmtree(session, ignore_errors=True)
        if not keeps_logs:
            claimed.unlink(missing_ok=True)


def end_abandoned_sessions() -> None:
    """Ends the Rays that this user's dead drivers started on this machine, and removes their folders."""
    for claimed in _ray_folder().glob("*".join(_CLAIM)):
        with contextlib.suppress(InputError):
            owner = read_json(claimed)
            is_alive = owner.get("boot") == boot() and psutil.pid_exists(int(owner.get("pid", 0)))
            if not is_alive and _is_ours(claimed):
                end_claimed(claimed)


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):  # another driver may remove it at the same time
        return path.lstat().st_uid == os.getuid() and not path.is_symlink()
    return False


def _ray_folder() -> Path:
    """Returns the folder in which Ray makes the folders of its sessions."""
    return Path(os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp")), "ray")


def scratch_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix=SCRATCH))


def of_session(session: Path) -> list[psutil.Process]:
    """Returns this user's processes, except this one, of the Ray with that session folder."""
    if not session.name.startswith("session_"):
        return []
    candidates = (process for process in psutil.process_iter() if process.pid != os.getpid())
    return [process for process in candidates if _is_of(process, str(session))]


def shared_memory(processes: Iterable[psutil.Process]) -> set[Path]:
    """Returns the shared-memory files that the processes have open or mapped."""
    files: set[Path] = set()
    for process in processes:
        open_paths = _open_files(process.pid)
        try:
            open_paths += re.findall(rf"{_SHARED_MEMORY}/.*", Path(f"/proc/{process.pid}/maps").read_text())
        except OSError:
            continue
        files |= {
            path for open_path in open_paths if (path := Path(open_path)).parent == _SHARED_MEMORY and path.exists()
        }
    return files


def _sweep_session(session: Path) -> tuple[int, int]:
    """Ends the processes of a Ray session and removes their shared memory; returns the number of each."""
    processes = of_session(session)
    pids = {process.pid for process in processes}
    entries = shared_memory(processes) | _named_by_pid(_pids_in_logs(session) - set(psutil.pids()) | pids)
    others = (
        shared_memory(other for other in psutil.process_iter() if other.pid not in pids) if entries else set[Path]()
    )
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=_GONE_S)
    for entry in entries - others:
        entry.unlink(missing_ok=True)
    return len(processes), len(entries - others)


def _is_of(process: psutil.Process, session: str) -> bool:
    try:
        if process.uids().real != os.getuid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        in_arguments = any(session in argument for argument in process.cmdline())
    except psutil.Error:
        return False
    return in_arguments or any(open_file.startswith(f"{session}/") for open_file in _open_files(process.pid))


def _open_files(pid: int) -> list[str]:
    paths: list[str] = []
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            paths.append(str(path.readlink()))
    except OSError:  # the process has ended or belongs to another user
        return paths
    return paths


def _pids_in_logs(session: Path) -> set[int]:
    """Returns the ids of all processes that the session ever had, from the names of the workers' logs."""
    names = (path.name for path in (session / "logs").glob("worker-*"))
    return {int(match[1]) for name in names if (match := re.search(r"-(\d+)\.(?:out|err)$", name))}


def _named_by_pid(pids: set[int]) -> set[Path]:
    """Returns the shared-memory files that torch named by these processes."""
    names = ((path, re.match(r"torch_(\d+)_", path.name)) for path in _SHARED_MEMORY.glob("torch_*"))
    return {path for path, match in names if match and int(match[1]) in pids}


def boot() -> str:
    """Returns the id of the machine's present boot; "" if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
