"""Trainings that are killed for real: a driver, twenty workers at random, and other numbers of workers on the way."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from platform.train.training_folder import TrainingFolder, steps_of
from tests.training.environment import ENVIRONMENT
from tests.training.layout_file import write_layout
from tests.training.values import DDP, STEP
from trainers.records.training import Begun, Saved
from trainers.records.training_lines import Reader
from trainers.spec.layout import Layout

pytestmark = [pytest.mark.ray, pytest.mark.heavy]

ROOT = Path(__file__).parents[2]
STEPS = 1000


def start(folder: Path, name: str, layout: Layout = DDP, *argv: str) -> "subprocess.Popen[bytes]":
    """Starts the command as a process of its own, in a process group of its own."""
    target = write_layout(folder / f"{name}-{layout.world_size}.json", layout)
    arguments = [
        "--tokens",
        str(STEPS * STEP),
        "--out",
        str(folder / name),
        "--studies",
        str(folder),
        "--address",
        "local",
    ]
    command = [sys.executable, "-m", "platform.train", str(target), *arguments, "--checkpoint-steps", "20", *argv]
    with (folder / f"{name}.err").open("ab") as err:
        return subprocess.Popen(
            command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=err, start_new_session=True
        )


def wait_for(folder: Path, step: int, process: "subprocess.Popen[bytes]") -> None:
    """Waits until a checkpoint of that step or a later one is recorded."""
    reader = Reader(folder / "training.jsonl")
    while not any(isinstance(record, Saved) and record.step >= step for record in reader.read()):
        assert process.poll() is None, "the training ended before it was disturbed"
        time.sleep(0.02)


def losses(folder: Path) -> list[float]:
    return [loss for step in steps_of(TrainingFolder(folder).read_records()) for loss in step.losses]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> list[float]:
    """Returns the losses of a training that nothing disturbed."""
    assert start(folder, "whole").wait() == 0, (folder / "whole.err").read_text()
    return losses(folder / "whole")


def test_the_same_command_goes_on_after_a_killed_driver(folder: Path, undisturbed: list[float]):
    process = start(folder, "driver")
    wait_for(folder / "driver", 100, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert start(folder, "driver").wait() == 0, (folder / "driver.err").read_text()
    psutil.wait_procs(children, timeout=120)
    begun = [
        read_record.step
        for read_record in TrainingFolder(folder / "driver").read_records()
        if isinstance(read_record, Begun)
    ]
    assert begun[0] == 0 and begun[1] >= 100
    assert losses(folder / "driver") == undisturbed


def test_a_training_whose_whole_process_group_is_ended_goes_on(folder: Path, undisturbed: list[float]):
    """Checks SIGTERM as `timeout` sends it: it ends Ray's processes too."""
    process = start(folder, "group")
    wait_for(folder / "group", 100, process)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == 130
    assert "Interrupted." not in (folder / "group.err").read_text(), "it was stuck until it was ended by force"
    assert start(folder, "group").wait() == 0, (folder / "group.err").read_text()
    assert losses(folder / "group") == undisturbed


def test_a_training_whose_raylet_dies_says_so(folder: Path):
    process = start(folder, "raylet", DDP, "--tokens", str(100 * STEPS * STEP))
    wait_for(folder / "raylet", 0, process)
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.name() == "raylet":
            child.kill()
    assert process.wait() == 3
    message = (folder / "raylet.err").read_text()
    assert "raylet) at 127.0.0.1:" in message and "the same command resumes the training" in message


def test_twenty_random_kills_of_workers_leave_the_undisturbed_losses(folder: Path, undisturbed: list[float]):
    kills: list[int] = []
    process, over = start(folder, "kills"), threading.Event()
    killer = threading.Thread(target=_kill_at_random, args=(folder / "kills", process, over, kills))
    killer.start()
    code = process.wait()
    over.set()
    killer.join()
    assert code == 0, (folder / "kills.err").read_text()
    print(
        f"{len(kills)} kills, {STEPS} steps, final loss {losses(folder / 'kills')[-1]}, undisturbed {undisturbed[-1]}"
    )
    assert len(kills) == 20
    assert losses(folder / "kills") == undisturbed


def _kill_at_random(folder: Path, process: "subprocess.Popen[bytes]", over: threading.Event, kills: list[int]) -> None:
    """Kills a worker twenty times: once a checkpoint has passed the next of twenty random steps, or just after.

    Where one checkpoint passes two of them, the next attempt dies in its first steps. The last fifth is undisturbed.
    """
    draw, reader = random.Random(0), Reader(folder / "training.jsonl")
    part = STEPS // 25
    kill_steps, reached, has_begun = [number * part + draw.randrange(part) for number in range(20)], 0, False
    while len(kills) < 20 and not over.wait(0.05):
        for record in reader.read():
            has_begun |= isinstance(record, Begun)
            reached = max(reached, record.step) if isinstance(record, Saved) else reached
        if not has_begun or reached < kill_steps[len(kills)] or over.wait(draw.random() / 5):
            continue
        workers: list[psutil.Process] = []
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "RayTrainWorker" in " ".join(child.cmdline()) and child.pid not in kills:
                    workers.append(child)
        if workers:
            chosen = draw.choice(workers)
            with contextlib.suppress(psutil.Error):  # it may have ended with a rank that was killed before
                chosen.kill()
                kills.append(chosen.pid)
                has_begun = False


def test_two_then_four_then_one_worker(folder: Path, undisturbed: list[float]):
    for layout, step in ((DDP, 200), (Layout(engine="ddp", dp_replicate=4), 600), (Layout(engine="ddp"), None)):
        process = start(folder, "numbers", layout)
        if step is not None:
            wait_for(folder / "numbers", step, process)
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 130, (folder / "numbers.err").read_text()
        else:
            assert process.wait() == 0, (folder / "numbers.err").read_text()
    disturbed_losses = losses(folder / "numbers")
    largest = max(abs(a - b) for a, b in zip(disturbed_losses, undisturbed, strict=True))
    print(f"largest difference of a loss {largest:.2g}, of the last {abs(disturbed_losses[-1] - undisturbed[-1]):.2g}")
    assert disturbed_losses == pytest.approx(undisturbed, rel=1e-3)
