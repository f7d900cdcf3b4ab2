"""The quiet end of a command whose reader left (`| head`), as filters end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from platform.common import signals
from platform.common.signals import READER_LEFT, UNWRITTEN

TABLE = "tests/cost_model/tables/megatron_ten_rows.csv"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(f"validate {TABLE} --json", marks=pytest.mark.slow),  # print
        f"validate {TABLE}",  # rich, which would end with 1: nothing fits
        "search --list",
        "plan bloom7b --cluster 8xH300",  # standard error
    ],
)
def test_a_reader_that_left_ends_a_command_quietly(command: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    output = tmp_path / "stderr"
    to_stderr = "H300" in command
    with output.open("wb") as file:
        run = subprocess.run(
            [sys.executable, "-m", *f"platform.{command}".split()],
            stdout=None if to_stderr else writer,
            stderr=writer if to_stderr else file,
            cwd=ROOT,
            timeout=300,
            check=False,
        )
    os.close(writer)
    assert (run.returncode, output.read_text()) == (READER_LEFT, "")


@pytest.mark.parametrize(
    ("streams", "environment"),
    [(">&-", {}), ("2>&-", {}), (">/dev/null", {"PYTHONIOENCODING": "ascii"})],
    ids=["no stdout", "no stderr", "a terminal of ASCII"],
)
def test_output_that_cannot_take_a_command_s_words_is_no_error(streams: str, environment: dict[str, str]) -> None:
    command = f"{sys.executable} -m platform.plan bloom7b --cluster 8xH100 --top 1 {streams}"
    run = subprocess.run(
        ["sh", "-c", command],
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=300,
        check=False,
        capture_output=True,
        text=True,
    )
    others = [line for line in run.stderr.splitlines() if not line.endswith(" s so far")]  # progress, on a busy machine
    assert (run.returncode, others) == (0, [])


@pytest.mark.parametrize(
    "command", [pytest.param(f"validate {TABLE} --json", marks=pytest.mark.slow), f"validate {TABLE}", "search --list"]
)
def test_output_to_a_full_disk_is_told_in_a_sentence(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-m", *f"platform.{command}".split()],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            timeout=300,
            check=False,
            text=True,
        )
    sentence = "error: not all of the output could be written: No space left on device\n"
    assert (run.returncode, run.stderr) == (UNWRITTEN, sentence)


def test_another_pipe_that_breaks_is_an_error() -> None:
    """Raises the error of another pipe, such as a socket's: only the readers of the output may leave."""
    program = "import conftest\nfrom platform.common.signals import exit_with\n"
    program += "def main(): raise BrokenPipeError('a socket')\nexit_with(main)"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, timeout=300, check=False, capture_output=True, text=True
    )
    assert run.returncode == 1
    assert "a socket" in run.stderr


NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize("number", NUMBERS)
def test_repeated_signals_interrupt_once(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks them as `timeout` sends them: a second interrupt would undo what answers the first."""
    monkeypatch.setattr(signals, "_interrupts", type(signals._interrupts)())  # type: ignore[reportPrivateUsage]
    caught = 0
    with signals.interruptible():
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            caught += 1
            for other in NUMBERS:
                os.kill(os.getpid(), other)
        monkeypatch.setattr(signals, "ONE_INTERRUPT_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert caught == 1


def test_counted_interrupts_raise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_interrupts", type(signals._interrupts)())  # type: ignore[reportPrivateUsage]
    monkeypatch.setattr(signals, "ONE_INTERRUPT_S", 0.0)
    with signals.interruptible():
        with signals.counted_interrupts() as interrupts:
            assert not interrupts
            for number in NUMBERS:
                os.kill(os.getpid(), number)
            assert len(interrupts) == 2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


STILL = """
import os, signal, time
from types import SimpleNamespace
from platform.common import signals

now_s = wakes_s = 0.0

def sleep(seconds):
    global wakes_s
    wakes_s = now_s + seconds
    while now_s < wakes_s:
        time.sleep(0.001)

signals.time = SimpleNamespace(monotonic=lambda: now_s, sleep=sleep)
with signals.interruptible(), signals.counted_interrupts(), signals.ends_when_interrupted():
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(20):
        while wakes_s <= now_s:  # until the watch has looked and sleeps again
            time.sleep(0.001)
        now_s += 0.5 * signals.INTERRUPT_S
        signals.still_ending()
    print("saved", flush=True)
    now_s += 2 * signals.INTERRUPT_S
    time.sleep(600)
"""
"""A command that goes on ending for longer than it may stand still, by a clock that no busy machine delays."""


def test_a_command_that_still_ends_is_left_alone() -> None:
    command = [sys.executable, "-c", STILL]
    run = subprocess.run(command, cwd=ROOT, timeout=120, check=False, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (signals.INTERRUPTED, "saved\n", "Interrupted.\n")


DECIDED = """
import atexit, conftest, sys, time
from platform.common.signals import exit_with

class Library:
    def end(self, said=print, sleep=time.sleep):  # names of modules are gone by then
        said("ends", flush=True)
        sleep(0.3)

if sys.argv[1] == "its hooks":
    atexit.register(Library().end)
else:
    Library.__del__, library = Library.end, Library()
exit_with(lambda: 3)
"""


@pytest.mark.parametrize("number", signals.ENDING)
@pytest.mark.parametrize("ends_by", ["its hooks", "Python's own end"])
def test_a_signal_after_its_code_is_decided_changes_nothing(number: int, ends_by: str) -> None:
    command = [sys.executable, "-c", DECIDED, ends_by]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ends\n"
        process.send_signal(number)
        _, printed = process.communicate(timeout=300)
    assert (process.returncode, printed) == (3, "")


BETWEEN = """
import conftest, os, signal
from platform.common.signals import exit_with, interruptible

def main():
    with interruptible():
        pass
    os.kill(os.getpid(), signal.SIGTERM)

exit_with(main)
"""


def test_a_signal_between_two_parts_of_a_command_interrupts_it() -> None:
    """Checks what follows a part that has taken signals itself: SIGTERM would have its default action."""
    command = [sys.executable, "-c", BETWEEN]
    run = subprocess.run(command, cwd=ROOT, timeout=300, check=False, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (signals.INTERRUPTED, "Interrupted.\n")
