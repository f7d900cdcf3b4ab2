"""Commands that a process of their own supervises: what ends them, they end with their own code and a sentence."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.disks import fill, small_disk
from tests.faults import leaks
from tests.training.environment import ENVIRONMENT
from tests.training.layout_file import write_layout
from tests.training.values import STEP
from tests.whole_searches.session import ROOT
from trainers.records.training import Steps
from trainers.records.training_lines import Reader

PROGRAM = """
import atexit, os, signal, sys, time
from platform.cluster import supervisor
from platform.common import signals

def main():
    supervisor.resumes_by("the first words")
    supervisor.resumes_by("the same command goes on")
    print("ready", flush=True)
    BODY

supervisor.supervise(main)
"""
GOES_ON = "the same command goes on"
RAY_ENDED = (
    "cluster fault: Ray ended this command, as it does once its own process on this machine (raylet) is lost;"
    f" {GOES_ON}\n"
)
DEFAULT = "signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"
AT_EXIT = "atexit.register(lambda: (print('exits', flush=True), time.sleep(60))); return 3"
COUNTED = """
    with signals.counted_interrupts() as interrupts:
        until_s = time.monotonic() + 30
        while time.monotonic() < until_s and not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        return 10 + len(interrupts)
"""


@contextlib.contextmanager
def supervised(body: str, *argv: str) -> Generator[subprocess.Popen[str]]:
    """Starts a supervised program, and yields it once it is ready."""
    command = [sys.executable, "-c", PROGRAM.replace("BODY", body), *argv]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def below(process: "subprocess.Popen[str]") -> psutil.Process:
    """Returns the process that a supervisor supervises."""
    (child,) = psutil.Process(process.pid).children()
    return child


@pytest.mark.parametrize(
    ("body", "code", "err"),
    [
        ("return 5", 5, ""),
        ("os._exit(1)", 3, RAY_ENDED),  # as Ray does
        ("os._exit(130)", 130, ""),
        (DEFAULT, 130, f"Interrupted: {GOES_ON}.\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, f"The command was killed by SIGKILL; {GOES_ON}.\n"),
        ("atexit.register(os._exit, 1); return 3", 3, ""),  # as Ray does where it leaves a lost head
        ("signal.raise_signal(signal.SIGTERM)", 130, "Interrupted.\n"),
        ("sys.exit(4)", 4, ""),
    ],
)
def test_each_end_has_its_code_and_its_sentence(body: str, code: int, err: str) -> None:
    with supervised(body) as process:
        _, printed = process.communicate(timeout=120)
    assert (process.returncode, printed) == (code, err)


def test_an_error_keeps_its_traceback() -> None:
    with supervised("raise RuntimeError('unforeseen')") as process:
        _, printed = process.communicate(timeout=120)
    assert process.returncode == 1 and "RuntimeError: unforeseen" in printed and "Ray" not in printed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_amid_exit_hooks_ends_it_at_once_with_the_code_that_is_known(number: signal.Signals) -> None:
    with supervised(AT_EXIT) as process:
        assert process.stdout is not None and process.stdout.readline() == "exits\n"
        began_s = time.monotonic()
        os.killpg(process.pid, number)
        _, printed = process.communicate(timeout=120)
    assert (process.returncode, printed) == (3, "") and time.monotonic() - began_s < 50


def test_what_a_group_gets_counts_once_even_where_the_supervisor_is_late(tmp_path: Path) -> None:
    """Sends a signal to the group whose supervisor stands still for longer than two signals may be apart, then one to
    the supervisor alone, and one to the process below it alone.
    """
    with supervised(COUNTED, str(tmp_path / "end")) as process:
        child = below(process)
        process.send_signal(signal.SIGSTOP)
        child.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        process.send_signal(signal.SIGCONT)
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        time.sleep(1.5)
        child.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        child.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        (tmp_path / "end").touch()
        process.communicate(timeout=120)
    assert process.returncode == 10 + 3


def test_it_is_killed_with_its_supervisor() -> None:
    with supervised("time.sleep(600); return 0") as process:
        child = below(process)
        process.kill()
        process.wait()
        assert leaks.gone([child], within_s=60)


LOST_RAYLET = """
    import numpy, psutil
    from platform.cluster.connection import connected
    with connected("local", cpu_workers=1):
        import ray  # which reads at import the settings that `connected` made
        (raylet,) = (child for child in psutil.Process().children(recursive=True) if child.name() == "raylet")
        raylet.kill()
        raylet.wait(60)
        while True:
            ray.put(numpy.zeros(1_000_000))
"""


@pytest.mark.ray
def test_ray_that_ends_its_driver_is_a_fault_of_the_cluster(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores a value in the object store of a killed raylet: Ray ends the process with 1 and no word."""
    folder = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("TMPDIR", str(folder))
    with supervised(LOST_RAYLET) as process:
        _, printed = process.communicate(timeout=300)
    assert process.returncode == 3 and printed.endswith(RAY_ENDED), printed
    assert not [pid for pid in psutil.pids() if str(folder) in _command_of(pid)]
    assert subprocess.run(
        [sys.executable, "-m", "platform.search", "--list"], cwd=ROOT, check=True, capture_output=True
    )
    assert not [*folder.glob("ray/session_2*"), *folder.glob("ray/*.json")], "the next command removes its logs"


def _command_of(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


@pytest.mark.parametrize("command", ["search --list", "train --help", "plan --help"])
def test_a_signal_amid_the_imports_of_a_command_interrupts_it(command: str) -> None:
    """Sends SIGTERM as soon as the command is ours, in the middle of what it imports."""
    words = [sys.executable, "-X", "importtime", "-m", *f"platform.{command}".split()]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.endswith(" platform.common\n"):
                process.terminate()
                break
        printed = process.stderr.read()
    assert process.returncode == 130 and "Traceback" not in printed and printed.endswith("Interrupted.\n"), printed


def _start(place: Path, disk: Path) -> "subprocess.Popen[bytes]":
    layout = write_layout(place / "layout.json")
    command = [sys.executable, "-m", "platform.train", str(layout), "--tokens", str(60 * STEP)]
    command += ["--out", str(disk / "t"), "--studies", str(place), "--address", "local", "--checkpoint-steps", "5"]
    (place / "tmp").mkdir()
    with (place / "err").open("wb") as err:
        return subprocess.Popen(
            command, cwd=ROOT, stdout=err, stderr=err, start_new_session=True,
            env={**ENVIRONMENT, "TMPDIR": str(place / "tmp"), "MLFLOW_TRACKING_URI": f"sqlite:///{place}/runs.db"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip


def _wait_until_full(process: "subprocess.Popen[bytes]", disk: Path) -> None:
    """Fills the disk once the training takes steps."""
    reader = Reader(disk / "t" / "training.jsonl")
    while process.poll() is None and not any(isinstance(record, Steps) for record in reader.read()):
        time.sleep(0.05)
    assert process.poll() is None, "it ended before the disk was full"
    fill(disk)


FULL, ENDED = "cannot be written", "cluster fault:"


@pytest.mark.ray
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("words", "after_s", "number"),
    [
        *(("", 0.0, number) for number in (signal.SIGTERM, signal.SIGINT)),
        *((FULL, after_s, signal.SIGTERM) for after_s in (0.0, 1.0)),
        *((ENDED, after_s, signal.SIGTERM) for after_s in (0.0, 0.1, 0.5, 1.5)),
        (ENDED, 0.5, signal.SIGINT),
    ],
)
def test_a_training_whose_disk_is_full_ends_in_order_by_a_signal(
    tmp_path_factory: pytest.TempPathFactory, words: str, after_s: float, number: signal.Signals
) -> None:
    """Checks its end as soon as the disk is full, and once it says so or that it ends: Ray ends, then Python does."""
    place = tmp_path_factory.mktemp("f")
    with small_disk(place / "d", 64) as disk:
        process = _start(place, disk)
        try:
            _wait_until_full(process, disk)
            while process.poll() is None and words not in (place / "err").read_text():
                time.sleep(0.005)
            time.sleep(after_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            code = process.wait(300)
        finally:
            process.kill()
        err = (place / "err").read_text()
        sentences = {130: "Interrupted", 3: ENDED}
        assert code in sentences and sentences[code] in err and "Traceback" not in err, (code, err)
        assert code == 3 or words != ENDED, "it had ended already"
        _check_no_process(place)


def _check_no_process(place: Path) -> None:
    named = [process for process in psutil.process_iter() if str(place) in _command_of(process.pid)]
    assert leaks.gone(named, within_s=120)


@pytest.mark.ray
@pytest.mark.heavy
def test_no_moment_of_a_training_has_the_default_action_of_a_signal(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Samples which signals the supervisor of a training with a full disk catches, from its first to its last."""
    place = tmp_path_factory.mktemp("m")
    with small_disk(place / "d", 64) as disk:
        process = _start(place, disk)
        try:
            caught: list[tuple[float, Sequence[int]]] = []
            reader, is_full = Reader(disk / "t" / "training.jsonl"), False
            while process.poll() is None:
                now = (time.monotonic(), _uncaught(process.pid))
                if not caught or caught[-1][1] != now[1]:
                    caught.append(now)
                time.sleep(0.002)
                if not is_full and any(isinstance(record, Steps) for record in reader.read()):
                    fill(disk)
                    is_full = True
        finally:
            process.kill()
        assert process.returncode == 3, (place / "err").read_text()
        states = [numbers for _, numbers in caught]
        assert () in states and all(not numbers for numbers in states[states.index(()) :]), states


def _uncaught(pid: int) -> Sequence[int]:
    """Returns the ending signals that have their default action in a process; () for one that has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    if "\nSigCgt:" not in status or "\nState:\tZ" in status:
        return ()
    mask = int(status.partition("\nSigCgt:")[2].split()[0], 16)
    return tuple(number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM) if not mask >> (number - 1) & 1)
