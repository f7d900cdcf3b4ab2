"""The watchdog ends a process that stands still, and only such a one. It exits the process, so each case runs in a
child; all children wait at the same time.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from trainers.host.watchdog import EXIT_CODE

_CHILD = """
import sys, time
from trainers.host.watchdog import Watchdog
floor_s = float(sys.argv[1])
dog = Watchdog(floor_s=floor_s, on_hang=lambda where, waited_s: print(where, waited_s >= floor_s, flush=True))
{body}
"""


BODIES = {
    # What each does, and the floor in seconds.
    "stands still": ("dog.beat('micro-step 3 of step 7'); time.sleep(600)", 1.0),
    "beats": ("for _ in range(16):\n    dog.beat('x'); time.sleep(0.5)\ndog.pause(); print('done')", 6.0),
    "is allowed more": ("dog.beat('x', allowed_s=120); time.sleep(3); print('done')", 1.0),
    "rests": ("dog.beat('x', allowed_s=6); dog.pause(); time.sleep(8); print('done')", 1.0),
    "has slow micro-steps": (
        "dog.saw(1.2); dog.beat('x'); time.sleep(3); print('still here', flush=True); time.sleep(600)",
        1.0,
    ),
}


@pytest.fixture(scope="module")
def children() -> Iterator[dict[str, subprocess.Popen[str]]]:
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", _CHILD.format(body=body), str(floor_s)], stdout=subprocess.PIPE, text=True
        )
        for name, (body, floor_s) in BODIES.items()
    }
    yield started
    for child in started.values():
        child.kill()
        child.communicate()


def test_standing_still_ends_the_process_and_says_where(children: dict[str, subprocess.Popen[str]]) -> None:
    out, _ = children["stands still"].communicate(timeout=300)
    assert children["stands still"].returncode == EXIT_CODE
    assert out.split("\n")[0] == "micro-step 3 of step 7 True"


@pytest.mark.parametrize("name", ["beats", "is allowed more", "rests"])
def test_what_does_not_stand_still_lives(name: str, children: dict[str, subprocess.Popen[str]]) -> None:
    out, _ = children[name].communicate(timeout=300)
    assert (children[name].returncode, out) == (0, "done\n")


def test_ten_slow_micro_steps_are_allowed(children: dict[str, subprocess.Popen[str]]) -> None:
    out, _ = children["has slow micro-steps"].communicate(timeout=300)
    assert children["has slow micro-steps"].returncode == EXIT_CODE
    assert out.startswith("still here")
