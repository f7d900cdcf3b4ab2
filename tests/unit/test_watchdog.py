"""The watchdog ends a process that stands still, and only such a one. It exits the process, so each runs in a child."""

import subprocess
import sys
import time

from trainers.watchdog import EXIT_CODE

_CHILD = """
import sys, time
from trainers.watchdog import Watchdog
floor_s = float(sys.argv[1])
dog = Watchdog(floor_s=floor_s, on_hang=lambda where, waited_s: print(where, waited_s >= floor_s, flush=True))
{body}
"""


def child(body: str, floor_s: float = 1.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _CHILD.format(body=body), str(floor_s)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_standing_still_ends_the_process_and_says_where():
    done = child("dog.beat('micro-step 3 of step 7'); time.sleep(30)")
    assert done.returncode == EXIT_CODE
    assert done.stdout.split("\n")[0] == "micro-step 3 of step 7 True"


def test_beats_keep_it_alive():
    done = child("for _ in range(8):\n    dog.beat('x'); time.sleep(0.5)\ndog.rest(); print('done')", floor_s=3.0)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_rest_switches_it_off_and_longer_allowances_hold():
    done = child("dog.beat('x', allowed_s=6); time.sleep(3); dog.rest(); time.sleep(2); print('done')")
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_ten_slow_micro_steps_are_allowed():
    start_s = time.monotonic()
    done = child("dog.saw(0.6); dog.beat('x'); time.sleep(3); print('still here', flush=True); time.sleep(30)")
    assert done.returncode == EXIT_CODE
    assert done.stdout.startswith("still here")
    assert time.monotonic() - start_s < 25
