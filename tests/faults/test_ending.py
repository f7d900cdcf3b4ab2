"""Signals that reach a command while it ends its Ray, whose core worker leaves the default action of SIGTERM behind."""

import subprocess
import sys

import pytest

from tests.whole_searches.session import ENVIRONMENT, ROOT

ENDING = """
import os, sys, time

from platform.cluster import leftovers
from platform.cluster.connection import connected
from platform.common.signals import ONE_INTERRUPT_S, interruptible

def signal_this():
    os.kill(os.getpid(), int(sys.argv[1]))


def signalled(function):
    def first_signalled(*arguments, **named):
        signal_this()
        function(*arguments, **named)

    return first_signalled


def sweep(claim, **named):
    signalled(swept)(claim, **named)
    print("swept", not claim.exists() and not list(claim.parent.glob(f"session_*_{os.getpid()}")))


with interruptible():
    with connected("local", cpu_workers=1):
        from ray._private.node import Node  # which reads its settings as it is imported

        Node.kill_all_processes = signalled(Node.kill_all_processes)
        swept, leftovers.end_claimed = leftovers.end_claimed, sweep  # here: dead drivers' sessions are swept before
    time.sleep(ONE_INTERRUPT_S)
    try:
        signal_this()
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted after it")
"""


@pytest.mark.ray
@pytest.mark.parametrize("number", [pytest.param(2, marks=pytest.mark.heavy), 15])
def test_a_signal_leaves_nothing_of_its_ray_behind(number: int) -> None:
    """Checks one signal while Ray ends its processes, one while its leftovers are swept, and one after that."""
    driver = subprocess.run(
        [sys.executable, "-c", ENDING, str(number)],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (driver.returncode, driver.stdout) == (0, "swept True\ninterrupted after it\n"), driver.stderr
