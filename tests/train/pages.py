"""Runs a page's commands one after the other, as a reader would."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

from tests.training.environment import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]


def commands(page: Path, study: str) -> list[str]:
    """Returns the indented lines of the page; a search that is not resolved (exit code 4) is resumed, as the page
    advises for a disturbed machine.
    """
    resume = f"python -m platform.search --resume {study}"
    assert resume in page.read_text()
    resumed = f"{{ [ $? = 4 ] && for _ in 1 2 3; do {resume} && break; done; }}"
    lines = [line.removeprefix("    ") for line in page.read_text().splitlines() if line.startswith("    ")]
    return [f"{line} || {resumed}" if line.startswith("python -m platform.search") else line for line in lines]


@contextlib.contextmanager
def followed(script: str, folder: Path, *, timeout_s: float) -> Generator[None]:
    """Runs a shell `script` to its end in `folder`, where `.venv` is the checkout's and `output` is what it prints;
    ends what it left running.
    """
    (folder / ".venv").symlink_to(ROOT / ".venv")
    with (folder / "output").open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-c", f"set -e\n{script}"],
            cwd=folder,
            env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        assert shell.wait(timeout=timeout_s) == 0, (folder / "output").read_text()[-5000:]
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
