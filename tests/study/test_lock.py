"""Folders in which a study may be: those whose locks hold between processes and between hosts."""

import fcntl
import os
from pathlib import Path

import pytest

from platform.common.errors import InputError
from platform.study.lock import LOCK, acquire, is_locked, unlocked

MOUNTS = """\
21 1 0:20 / / rw,relatime - ext4 /dev/vda rw
30 21 0:40 / /nfs rw,relatime - nfs4 server:/a rw,vers=4.2,local_lock=none
31 21 0:41 / /nolock rw,relatime - nfs server:/b rw,vers=3,nolock,local_lock=all
32 21 0:42 / /lustre rw - lustre mds:/c rw,flock,user_xattr
33 21 0:43 / /lustre/local rw - lustre mds:/d rw,localflock
34 21 0:44 / /my\\040bucket rw - fuse.s3fs s3fs rw,user_id=0
35 21 0:45 / /home rw - fuse.glusterfs host:/e rw
36 21 0:46 / /nolock/again rw - ext4 /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("/data/studies", ""),
        ("/nfs/studies", ""),
        ("/nolock/studies", "nfs mounted with nolock"),
        ("/nolock/again/studies", ""),
        ("/lustre/studies", ""),
        ("/lustre/local/studies", "lustre mounted with localflock"),
        ("/my bucket/studies", "s3fs: an object store"),
        ("/home/studies", ""),
    ],
)
def test_a_mount_whose_locks_other_hosts_do_not_see_is_known(folder: str, reason: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    sentence = unlocked(Path(folder), mounts)
    assert reason in sentence and bool(sentence) == bool(reason)


def test_this_machine_s_folders_lock(tmp_path: Path) -> None:
    assert unlocked(tmp_path) == ""
    file = acquire(tmp_path)
    assert is_locked(tmp_path)
    with pytest.raises(InputError, match=f"is being run by process {os.getpid()} on "):
        acquire(tmp_path)
    os.close(file)
    assert not is_locked(tmp_path)


def test_a_file_system_that_only_says_that_it_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # as some network file systems answer
    with pytest.raises(InputError, match=r"without locks \(two descriptors hold the same lock\).* --copy-to"):
        acquire(tmp_path)
    assert (tmp_path / LOCK).exists()


def test_a_folder_on_such_a_mount_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.study.lock.unlocked", lambda _: "(nfs mounted with nolock)")
    with pytest.raises(InputError, match=r"without locks \(nfs mounted with nolock\): choose"):
        acquire(tmp_path)
    assert not (tmp_path / LOCK).exists()
