"""A benchmark that runs searches, and what ends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEARCH = f"""#!{sys.executable}
import sys, time
from pathlib import Path

here = Path(__file__).parent
try:
    (here / "runs").touch()
    time.sleep(60)
except KeyboardInterrupt:  # as a search does, which ends its trial first
    time.sleep(1)
    (here / "ended").touch()
    sys.exit(130)
"""
BENCHMARK = """
import sys
from pathlib import Path

from benchmarks.winners import search

sys.executable = sys.argv[1]
search(Path(sys.argv[1]).parent, "made-up", ["gpt2"], [])
"""


def test_signals_of_timeout_end_it_quietly_once_its_search_has_ended(tmp_path: Path) -> None:
    """`timeout -s INT` sends one to the command that it started, and one to that command's group."""
    command = tmp_path / "search"
    command.write_text(SEARCH)
    command.chmod(0o755)
    running = subprocess.Popen(
        [sys.executable, "-c", BENCHMARK, str(command)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until_s = time.monotonic() + 50
    while not (tmp_path / "runs").exists():
        assert running.poll() is None and time.monotonic() < until_s
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGINT)
    time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=50)
    assert said == "the study made-up was interrupted; the same command goes on with it\n"
    assert running.returncode == 1 and (tmp_path / "ended").exists()
