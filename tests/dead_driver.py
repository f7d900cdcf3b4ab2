"""What a killed driver leaves of the Ray that it had started, below a folder that `RAY_TMPDIR` names."""

import os
import subprocess
import sys
from pathlib import Path

CLAIM = "from platform.cluster import leftovers; print(leftovers.claim())"


def session_of_dead_driver(folder: Path) -> Path:
    """Returns the session's folder, which a driver that has ended claimed before it began."""
    command, root = [sys.executable, "-c", CLAIM], Path(__file__).parents[1]
    environment = {**os.environ, "RAY_TMPDIR": str(folder)}
    driver = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, cwd=root, env=environment)
    printed, _ = driver.communicate()
    assert Path(printed.strip()).is_file()
    session = folder / "ray" / f"session_2026_{driver.pid}"
    (session / "logs").mkdir(parents=True)
    return session
