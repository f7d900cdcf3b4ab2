"""Signals that reach a command while it ends its Ray, whose core worker leaves the default action of SIGTERM behind."""

import subprocess
import sys

import pytest

from tests.whole_searches.session import ENVIRONMENT, ROOT

ENDING = """
import os, sys

from platform.cluster import leftovers
from platform.cluster.connection import connected
from platform.common.errors import ClusterError
from platform.common.signals import interruptible

def signal_this():
    os.kill(os.getpid(), int(sys.argv[1]))


def signalled(function):
    def first_signalled(*arguments, **named):
        signal_this()
        function(*arguments, **named)

    return first_signalled


def sweep(claim, **named):
    signalled(swept)(claim, **named)
    print("swept", not list(claim.parent.glob(f"session_*_{os.getpid()}")))


with interruptible():
    try:
        with connected("local", cpu_workers=1):
            from ray._private.node import Node  # which reads its settings as it is imported

            Node.kill_all_processes = signalled(Node.kill_all_processes)
            swept, leftovers.end_claimed = leftovers.end_claimed, sweep
            if sys.argv[2] == "fails":
                raise ClusterError("a fault")
        print("goes on")
    except KeyboardInterrupt:
        print("interrupted after it")
    except ClusterError as error:
        print(error)
"""


@pytest.mark.ray
@pytest.mark.parametrize("number", [2, 15])
@pytest.mark.parametrize(("ending", "printed"), [("returns", "interrupted after it"), ("fails", "a fault")])
def test_a_signal_leaves_nothing_of_its_ray_behind(number: int, ending: str, printed: str) -> None:
    """Checks one signal while Ray ends its processes, and one while its leftovers are swept: they count after that,
    unless the command ends anyhow.
    """
    driver = subprocess.run(
        [sys.executable, "-c", ENDING, str(number), ending],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    swept = ending == "returns"  # a fault's logs are kept
    assert (driver.returncode, driver.stdout) == (0, f"swept {swept}\n{printed}\n"), driver.stderr
