"""A Ray of the search's own that does not come up in the time that Ray gives it, as on a machine short of processor."""

import contextlib
import subprocess
import sys
import time

import psutil
import pytest

from tests.whole_searches.session import ENVIRONMENT, ROOT, lives

UP = """
from platform.cluster.connection import connected

with connected("local", cpu_workers=1) as place:
    print(place.cluster.num_nodes)
"""


@pytest.mark.ray
@pytest.mark.heavy
def test_it_is_started_once_more_and_nothing_of_the_first_is_left() -> None:
    command = [sys.executable, "-c", UP]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True) as driver:
        first: list[psutil.Process] = []
        while not any("raylet" in name_of(process) for process in first):
            assert driver.poll() is None
            first = [child for child in psutil.Process(driver.pid).children(recursive=True) if lives(child)]
            time.sleep(0.01)
        next(process for process in first if "raylet" in name_of(process)).suspend()
        while any(lives(process) for process in first):  # a raylet that stands still does not end by itself
            assert driver.poll() is None
            time.sleep(0.1)
        out, err = driver.communicate(timeout=900)
    assert (driver.returncode, out) == (0, "1\n"), err
    assert "Ray did not come up in the 30 s that it allows itself" in err


def name_of(process: psutil.Process) -> str:
    """Returns the name of the process; "" once the process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""
