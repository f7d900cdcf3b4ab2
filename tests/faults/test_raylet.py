"""A killed raylet ends a command with its sentence and its exit code, which Ray's own end would replace by 1."""

import os
import subprocess
import sys

import pytest

from tests.whole_searches.session import ENVIRONMENT, ROOT

pytestmark = pytest.mark.ray

LOST = """
import os, threading, time
import psutil
from platform.cluster import connection
from platform.common.command import exit_code_of
from platform.common.errors import ClusterError
from platform.common.signals import exit_with

def lose(*_):
    (raylet,) = (child for child in psutil.Process().children() if child.name() == "raylet")
    raylet.kill()
    raylet.wait()
    raise ClusterError(f"lost below {os.getppid()}")

BODY

exit_with(lambda: exit_code_of(main))
"""
WHILE_IT_STARTS = """
def main():
    connection.ask = lose
    with connection.connected("local", cpu_workers=1):
        pass
"""
WHILE_A_THREAD_ASKS = """
def ask(core_worker):
    while True:  # the way from any call into Ray and back
        core_worker.get_current_task_id()
        time.sleep(0.001)

def main():
    with connection.connected("local", cpu_workers=1):
        from ray._private.worker import global_worker

        threading.Thread(target=ask, args=(global_worker.core_worker,), daemon=True).start()
        lose()
"""


def _lost(body: str) -> list[str]:
    return [sys.executable, "-c", LOST.replace("BODY", body)]


def test_an_orphan_s_sentence_comes() -> None:
    """Checks a command whose parent has ended, as after `nohup`. Below process 1, which adopts orphans unless another
    process does, Ray takes that for the raylet's end.
    """
    orphan = ["sh", "-c", '"$@" &', "sh", *_lost(WHILE_IT_STARTS)]
    output = subprocess.run(orphan, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=True)
    assert output.stderr.splitlines()[-1].startswith("cluster fault: lost below "), output.stderr


def test_a_thread_that_still_asks_ray_does_not_end_it() -> None:
    driver = subprocess.run(
        _lost(WHILE_A_THREAD_ASKS), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    last = f"cluster fault: lost below {os.getpid()}"
    assert (driver.returncode, driver.stderr.splitlines()[-1]) == (3, last), driver.stderr
