"""Runs the commands of a documentation page one after the other, like a reader."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

from tests.training.environment import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]


_SEARCH = re.compile(r"python -m platform\.search .* --name (\S+)")


def commands(page: Path) -> list[str]:
    """Returns the indented lines of the page. A search without a resolved winner (exit code 4) is resumed, as the page
    advises for a disturbed machine.
    """
    assert "python -m platform.search --resume " in page.read_text()
    lines = [line.removeprefix("    ") for line in page.read_text().splitlines() if line.startswith("    ")]
    return [f"{line} || {_resumed(search[1])}" if (search := _SEARCH.match(line)) else line for line in lines]


def _resumed(study: str) -> str:
    return f"{{ [ $? = 4 ] && for _ in 1 2 3; do python -m platform.search --resume {study} && break; done; }}"


@contextlib.contextmanager
def followed(script: str, folder: Path, *, timeout_s: float) -> Generator[None]:
    """Runs a shell `script` to its end in `folder`, with the checkout's `.venv` and `output` as its output; ends all
    processes that it leaves.
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
