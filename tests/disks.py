"""Full file systems: small real ones in memory, which only root may mount."""

import contextlib
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

from tests import needs

_NOT_ALLOWED = ("permission denied", "not permitted", "superuser", "only root")
"""Words of the messages of `mount` for users who may not mount."""


@contextlib.contextmanager
def small_disk(folder: Path, size_mib: int) -> Generator[Path]:
    """Creates `folder`, mounts a file system of `size_mib` there and yields it; skips if this user may not mount, and
    fails for other mount errors.

    A quota or a truncated file would not do, because the tests need the kernel's refusal of a write.
    """
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", folder]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        message = mounted.stderr.strip()
        assert any(words in message for words in _NOT_ALLOWED), message
        needs.refused("mounting a small disk", message)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> Path:
    """Writes a file that fills the disk; returns its path."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                os.write(file.fileno(), b"x" * 4096)
        except OSError:
            return filler
