"""File systems that are really full: small ones in memory, which only root of the machine may mount."""

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
    """Yields `folder`, which it makes, with a file system of `size_mib` mounted at it; skips where this user may not
    mount, and fails where mounting fails for another reason.

    A quota or a file opened short would not do: the tests look at the kernel's own refusal of a write.
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
    """Writes a file that leaves no room on the disk; returns its path."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                os.write(file.fileno(), b"x" * 4096)
        except OSError:
            return filler
