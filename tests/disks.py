"""File systems that are really full: small ones in memory, which only root of the machine may mount."""

import contextlib
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size_mib: int) -> Generator[Path]:
    """A file system of `size_mib` mounted at `folder`, which is made; skips where this user may not mount.

    A quota or a file opened short would not do: the kernel's own refusal of a write is what is looked at.
    """
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", folder]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"only root may mount a small disk, and this machine refuses: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
