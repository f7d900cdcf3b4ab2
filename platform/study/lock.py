"""The lock of a study's folder: one driver at a time, and only on file systems whose locks other hosts see."""

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
from pathlib import Path

from platform.common.errors import InputError
from trainers.records.journal_lines import now
from trainers.records.plain_files import open_plain
from trainers.spec.codec import json_object
from trainers.spec.errors import MissingFileError

LOCK = "lock"
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")
_LOCAL_ONLY = {
    "nfs": ("nolock", "local_lock=all", "local_lock=flock"),
    "nfs4": ("nolock", "local_lock=all", "local_lock=flock"),
    "lustre": ("localflock",),
}
"""Mount options of network file systems under which a lock only holds on one host."""
_OBJECT_STORES = ("s3fs", "gcsfuse", "goofys", "rclone", "mount-s3", "mountpoint-s3", "blobfuse", "blobfuse2")
"""FUSE programs that mount an object store as a folder. They cannot append, and their locks only hold on one host."""


def acquire(path: Path) -> int:
    """Locks the study in folder `path` and returns the lock's file descriptor. The lock ends with the process.

    Raises:
        InputError: another driver holds the lock, the folder does not exist, or its file system has no working locks.
    """
    if reason := unlocked(path):
        raise InputError(_refusal(path, reason))
    try:
        file = open_plain(path / LOCK, os.O_RDWR | os.O_CREAT)
    except MissingFileError as error:
        raise InputError(f"the folder {path} is gone") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(file, 4096)
        os.close(file)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise InputError(_refusal(path, f"({error.strerror})")) from error
        raise InputError(f"the study {path.name!r} is being run {_holder(holder)}: wait for it to end") from error
    if not is_locked(path):  # a second descriptor got the lock too, so the file system's locks have no effect
        os.close(file)
        raise InputError(_refusal(path, "(two descriptors hold the same lock)"))
    holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now()}).encode()
    with contextlib.suppress(OSError):  # a full disk does not affect the lock; only the holder's name is missing
        os.ftruncate(file, 0)
        os.write(file, holder)
    return file


def is_locked(path: Path) -> bool:
    """Returns whether a driver is running the study in folder `path`."""
    try:
        file = open_plain(path / LOCK)  # read-only: a reader of another user's study may not write
    except InputError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


def unlocked(path: Path, mounts: Path = _MOUNTS) -> str:
    """Returns why a lock below `path` would only hold on one host, judged by the mount; "" if it holds or is unknown.

    Two hosts could then write one journal. A single process cannot test this by locking.
    """
    kind, options = _mount_of(path.absolute(), mounts)
    kind, _, program = kind.partition(".")  # fuse.s3fs
    for option in _LOCAL_ONLY.get(kind, ()):
        if option in options:
            return f"({kind} mounted with {option}: other hosts do not see its locks)"
    if kind == "fuse" and program in _OBJECT_STORES:
        return f"({program}: an object store's folder, whose locks other hosts do not see)"
    return ""


def _mount_of(path: Path, mounts: Path) -> tuple[str, frozenset[str]]:
    """Returns the type and mount options of the file system that holds `path`; empty if the system does not list it."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return "", frozenset()
    best, mount = -1, ("", frozenset[str]())
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, (kind, *mount_fields) = before.split(), after.split() or [""]
        if len(fields) < 6:
            continue
        mount_point = Path(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # The later of two mounts at one path is in effect.
        if path.is_relative_to(mount_point) and len(mount_point.parts) >= best:
            best, mount = len(mount_point.parts), (kind, frozenset(",".join((fields[5], *mount_fields[1:])).split(",")))
    return mount


def _refusal(path: Path, reason: str) -> str:
    return (
        f"the folder {path} is on a file system without locks {reason}: choose a local or shared folder that locks by"
        " --studies, and give this one to --copy-to"
    )


def _holder(text: bytes) -> str:
    try:
        holder = json_object(text)
        return f"by process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (ValueError, KeyError):
        return "by another process"
