"""A command's run at one batch point: real processes, whose steps, memory, ends and limits are what a script makes."""

import itertools
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from search_spaces.command import space_of_command
from trainers.commands import supervisor
from trainers.commands.run import AGREEMENT, PointRun, Run, Starter, follow, on_this_node, remark_of
from trainers.commands.steps import Step, StepReader
from trainers.commands.trees import Tree
from trainers.records.job import Job, Timing
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.workload import Workload

SCRIPT = """
import argparse, json, os, subprocess, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--accum", type=int)
parser.add_argument("--mode", default="plain")
parser.add_argument("--out")
options = parser.parse_args()
tokens = options.batch * options.accum * 2 * 16
def step(number, seconds=0.02, told=None, **fields):
    time.sleep(seconds)
    line = {"tokens": tokens, "s": told or seconds, "loss": 3.0 - number / 100, **fields}
    with open(os.environ["LAYOUT_SEARCH_STEPS"], "a") as file:
        file.write(json.dumps(line) + "\\n")
def seen(number):
    while not os.path.exists(f"seen-{number}"):
        time.sleep(0.005)
"""
"""`seen` waits until the run has seen so many steps."""
TIMING = Timing(window_s=0.04, rung_s=0.2, min_windows=3, winner_s=0.4)


def _run(folder: Path, body: str, *, words: tuple[str, ...] = (), step_line: str = "", **fields: Any) -> Run:
    """Returns the run of a script that ends with `body`, at micro-batch 2 and accumulation 4 on two workers."""
    run, figures = _measured(folder, body, words=words, step_line=step_line, **fields)
    assert (figures.get("tokens_per_s") is not None) == (run.outcome in (Outcome.OK, Outcome.SLOW))
    return run


def _measured(
    folder: Path,
    body: str,
    *,
    words: tuple[str, ...] = (),
    step_line: str = "",
    starter: Callable[[Job], Starter] = on_this_node,
    **fields: Any,
) -> tuple[Run, dict[str, Any]]:
    (folder / "train.py").write_text(SCRIPT + body)
    command = (sys.executable, "train.py", "--batch", "{micro_batch=2}", "--accum", "{grad_accum}", *words)
    space = space_of_command(command, folder=folder, tokens_per_step=256, seq_len=16, step_line=step_line)
    ((candidate, *_), _) = space.candidates(2)
    limits: dict[str, Any] = {"hang_floor_s": 300.0, "first_step_s": 300.0, **fields}
    job = Job(
        trial_id="t1",
        recorder="",
        recipe=candidate.recipe,
        layout=candidate.layout,
        rungs=candidate.batch_points(),
        cluster=Cluster(device_kind="cpu", device="a processor", device_memory_gib=8.0, devices_per_node=2),
        cpus_per_worker=0.5,
        timing=TIMING,
        **limits,
    )
    assert job.rungs == (BatchPoint(micro_batch=2, grad_accum=4),)

    def tick(run: Run) -> None:
        (folder / f"seen-{len(run.steps)}").touch()

    return PointRun(job, starter(job), job.rungs[0], tick).measured()


def test_a_run_ends_after_enough_steady_steps_and_has_its_figures(tmp_path: Path) -> None:
    run, figures = _measured(tmp_path, "for number in range(10**6):\n    step(number)\n    seen(number + 1)\n")
    assert (run.outcome, run.reason) == (Outcome.OK, "")
    timed_s = figures["step_times_s"][TIMING.warmup_steps :]
    assert sum(timed_s[:-1]) < TIMING.rung_s <= sum(timed_s)
    assert figures["tokens_per_s"] == pytest.approx(256 / 0.02)
    assert figures["tokens_per_s_per_gpu"] == figures["tokens_per_s"] / 2
    assert figures["steps_per_window"] == 2
    assert figures["losses"][:2] == (3.0, 2.99)
    assert run.peak_gib is not None and 0.001 < run.peak_gib < 1
    assert figures["peak_device_gib"] == run.peak_gib / 2  # of each worker


ENDS: dict[str, tuple[str, Outcome, str]] = {
    "tokens that differ": (
        "for number in range(99):\n    step(number, tokens=tokens // 2)\n",
        Outcome.FAILED,
        "its step at micro-batch 2 and accumulation 4 has 128 tokens where all points train on 256",
    ),
    "an exception": (
        "step(0)\nraise ValueError('no such flag')\n",
        Outcome.FAILED,
        "it ended with exit code 1 after 1 steps: ValueError: no such flag",
    ),
    "memory of torch": (
        "step(0)\nraise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')\n",
        Outcome.OOM,
        "CUDA out of memory. Tried to allocate 2.00 GiB",
    ),
    "memory above a launcher's error": (
        "print('RuntimeError: DefaultCPUAllocator: can\\'t allocate memory: you tried to allocate 1073741824 bytes')\n"
        "raise SystemExit('torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED')\n",
        Outcome.OOM,
        "(1.00 GiB)",
    ),
    "a hint about memory": (
        "print('Tip: where you run out of memory, lower --batch')\nraise ValueError('no such flag')\n",
        Outcome.FAILED,
        "ValueError: no such flag",
    ),
    "a shell's code of a kill": ("step(0)\nraise SystemExit(137)\n", Outcome.OOM, "killed by signal 9"),
    "bytes that are no text": (
        "sys.stdout.buffer.write(bytes(range(256)) * 99 + b'\\n')\nsys.stdout.flush()\nraise KeyError('\\x00')\n",
        Outcome.FAILED,
        "KeyError: ",
    ),
    "an error in colours": (
        "print('\\x1b[1;31mValueError\\x1b[0m: \\x1b[38;5;9mno such flag\\x1b[0m')\nraise SystemExit(1)\n",
        Outcome.FAILED,
        "before its first step: ValueError: no such flag",
    ),
    "tokens that change": (
        "for number in range(99):\n    step(number, tokens=tokens + 16 * (number == 3))\n",
        Outcome.FAILED,
        "has 272 tokens where all points train on 256",
    ),
    "a cut line of a killed script": (
        "step(0)\nopen(os.environ['LAYOUT_SEARCH_STEPS'], 'a').write('{\"tokens\": 2')\nos.kill(os.getpid(), 9)\n",
        Outcome.OOM,
        "killed by signal 9",
    ),
    "a kill": ("step(0)\nos.kill(os.getpid(), 9)\n", Outcome.OOM, "killed by signal 9"),
    "a loss that is no number": (
        "for number in range(99):\n    step(number, loss=float('nan'))\n",
        Outcome.DIVERGED,
        "the loss was nan at step 0",
    ),
    "no step": ("print('trained')\n", Outcome.FAILED, "it wrote no line of a step, and ended with exit code 0"),
    "too few steps": ("step(0)\nstep(1)\nstep(2)\n", Outcome.FAILED, "it ended by itself after 3 steps"),
    "a line that is no step": (
        "open(os.environ['LAYOUT_SEARCH_STEPS'], 'w').write('step 1\\n')\ntime.sleep(60)\n",
        Outcome.FAILED,
        "a step is reported as",
    ),
}


@pytest.mark.parametrize("kind", ENDS)
def test_how_a_command_ends_is_what_is_recorded(kind: str, tmp_path: Path) -> None:
    body, outcome, reason = ENDS[kind]
    run = _run(tmp_path, body)
    assert (run.outcome, reason in run.reason) == (outcome, True), run.reason


def test_a_script_that_trains_for_few_steps_counts_once_it_has_enough(tmp_path: Path) -> None:
    run = _run(tmp_path, "for number in range(6):\n    step(number)\n")
    assert (run.outcome, len(run.steps)) == (Outcome.OK, 6)


WRITES = {
    "in two parts": (
        "file = open(os.environ['LAYOUT_SEARCH_STEPS'], 'a')\nfor number in range(6):\n"
        "    text = json.dumps({'tokens': tokens, 'loss': number}) + '\\n'\n    time.sleep(0.02)\n"
        "    print(text[:9], end='', file=file, flush=True)\n"
        "    time.sleep(0.1)\n    print(text[9:], end='', file=file, flush=True)\n"
    ),
    "without the last line's end": (
        "for number in range(5):\n    step(number, loss=number)\n"
        "open(os.environ['LAYOUT_SEARCH_STEPS'], 'a').write(json.dumps({'tokens': tokens, 'loss': 5}))\n"
    ),
    "into a file of its own each time": (
        "path = os.environ['LAYOUT_SEARCH_STEPS']\nfor number in range(6):\n    os.remove(path)\n    time.sleep(0.1)\n"
        "    open(path + '.new', 'w').write(json.dumps({'tokens': tokens, 'loss': number}) + '\\n')\n"
        "    os.replace(path + '.new', path)\n    seen(number + 1)\n"
    ),
}


@pytest.mark.parametrize("kind", WRITES)
def test_every_step_counts_once_however_its_line_is_written(kind: str, tmp_path: Path) -> None:
    run = _run(tmp_path, WRITES[kind])
    assert run.outcome is Outcome.OK and len(run.steps) in (5, 6), run.reason
    assert [step.loss for step in run.steps] == list(range(len(run.steps)))
    assert kind != "without the last line's end" or len(run.steps) == 6


def test_steps_that_are_seen_at_once_took_the_time_between_two_looks(tmp_path: Path) -> None:
    """Checks a machine so busy that all lines are there at the next look: no step took no time."""
    path = tmp_path / "steps.jsonl"
    path.touch()
    reader = StepReader(file=path, log=path, step_line="")
    began_s = time.monotonic()
    assert reader.new() == []
    time.sleep(0.2)
    path.write_text('{"tokens": 256}\n' * 8)
    steps = reader.new()
    apart_s = [later.at_s - step.at_s for step, later in itertools.pairwise(steps)]
    assert began_s < steps[0].at_s and steps[-1].at_s <= time.monotonic()
    assert min(apart_s) == pytest.approx(max(apart_s)) and min(apart_s) >= 0.2 / 8


TELLS = "open('child', 'w').write(str(__import__('os').getpid()))\n"
LEAVING = {
    "ignores SIGTERM": ("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n", "{}"),
    "has an environment of its own": ("import time\n", "{'env': {'PATH': '/usr/bin'}}"),
    "is a daemon with an environment of its own": (
        "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n",
        "{'env': {'PATH': '/usr/bin'}, 'start_new_session': True}",
    ),
}


@pytest.mark.parametrize("kind", LEAVING)
def test_no_process_of_a_run_is_left_whatever_it_does(kind: str, tmp_path: Path) -> None:
    """Checks also that its memory counts."""
    source, options = LEAVING[kind]
    child = f"{source}held = bytearray(300 * 2**20)\n{TELLS}time.sleep(600)"
    body = (
        f"subprocess.Popen([sys.executable, '-c', {child!r}], **{options})\n"
        "while not os.path.exists('child'):\n    time.sleep(0.02)\n"
        "time.sleep(1.2)\nfor number in range(10**6):\n    step(number)\n"
    )
    run = _run(tmp_path, body)
    assert run.outcome is Outcome.OK and run.peak_gib is not None and run.peak_gib > 0.28, run.reason
    pid = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_silent_command_is_hung_and_all_of_its_processes_end(tmp_path: Path) -> None:
    """Checks also a process that left the command's session, as torchrun's workers do."""
    body = (
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "open('child', 'w').write(str(child.pid))\nstep(0)\ntime.sleep(600)\n"
    )
    run = _run(tmp_path, body, hang_floor_s=0.5)
    assert run.outcome is Outcome.HUNG and "no step for" in run.reason
    child = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_command_without_a_first_step_in_its_time_is_hung(tmp_path: Path) -> None:

    def once_it_prints(job: Job) -> Starter:
        """Returns a function that starts the command and waits for its first line, however long Python takes."""

        def start(workload: Workload, values: Mapping[str, object]) -> Tree:
            tree = on_this_node(job)(workload, values)
            while not tree.text():
                time.sleep(0.01)
            return tree

        return start

    body = "print('loading', flush=True)\ntime.sleep(600)\n"
    run = _run(tmp_path, body, first_step_s=1.0, starter=once_it_prints)
    assert (run.outcome, run.output) == (Outcome.HUNG, "loading")
    assert run.reason == "no step within 1 s of its start"


def test_a_slow_point_is_stopped(tmp_path: Path) -> None:
    body = "for number in range(10**6):\n    step(number, 0.1)\n    seen(number + 1)\n"
    run = _run(tmp_path, body, incumbent_tokens_per_s=1e6)
    assert run.outcome is Outcome.SLOW and len(run.steps) == TIMING.warmup_steps + 3


@pytest.mark.parametrize(("told_s", "remark"), [(0.1, ""), (0.096, ""), (0.05, "100% longer"), (0.2, "50% shorter")])
def test_seconds_that_the_clock_contradicts_are_told(told_s: float, remark: str) -> None:
    steps = tuple(Step(at_s=0.1 * number, tokens=256, seconds=told_s) for number in range(1, 10))
    run = Run(steps=steps, began_s=0.0, outcome=Outcome.OK)
    clause = f"by the clock its steps took {remark} than the command reports" if remark else ""
    assert remark_of(run, 2) == remark_of(run, 0) == clause
    assert AGREEMENT == 0.05


def test_printed_lines_are_steps_where_a_pattern_says_so(tmp_path: Path) -> None:
    body = (
        "for number in range(10**6):\n    time.sleep(0.02)\n"
        "    print(f\"{{'loss': \\x1b[32m{3 - number / 100}\\x1b[0m, 'epoch': 1}}\")\n"
    )
    run, figures = _measured(tmp_path, body, step_line=r"'loss': (?P<loss>[\d.]+)")
    assert run.outcome is Outcome.OK and figures["losses"][0] == 3.0
    assert "do not state the tokens of a step" in figures["remark"]
    timed_s = figures["step_times_s"][TIMING.warmup_steps :]
    assert min(timed_s) <= 256 / figures["tokens_per_s"] <= max(timed_s)
    assert sum(timed_s) == pytest.approx(run.steps[-1].at_s - run.steps[TIMING.warmup_steps - 1].at_s)


def test_the_output_folder_is_new_in_each_run_and_gone_after_it(tmp_path: Path) -> None:
    body = (
        "assert os.listdir(options.out) == []\nopen(options.out + '/weights', 'w').write('many')\n"
        "open('out', 'a').write(options.out + '\\n')\nfor number in range(10**6):\n    step(number)\n"
    )
    for _ in range(2):
        assert _run(tmp_path, body, words=("--out", "{out}")).outcome is Outcome.OK
    folders = (tmp_path / "out").read_text().split()
    assert len(set(folders)) == 2 and not any(Path(folder).exists() for folder in folders)


def test_a_command_has_the_environment_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that what this process set later, as Ray does, is not the command's, and what the job says is."""
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    values = '[os.environ.get(name) for name in ("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "MINE")]'
    body = f"open('told', 'w').write(json.dumps({values}))\nstep(0)\nstep(1, tokens=1)"
    _run(tmp_path, body, environment={"HF_HUB_OFFLINE": None, "MINE": "7"})
    threads, *others = json.loads((tmp_path / "told").read_text())
    assert threads != "77" and others == [None, "7"]


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    space = space_of_command(
        ("no-such-launcher", "{micro_batch=1}", "{grad_accum}"), folder=tmp_path, tokens_per_step=32, seq_len=16
    )
    ((candidate, *_), _) = space.candidates(1)
    job = Job(
        trial_id="t1", recorder="", recipe=candidate.recipe, layout=candidate.layout, rungs=candidate.batch_points(),
        cluster=Cluster(device_kind="cpu", device="a processor", device_memory_gib=8.0), cpus_per_worker=0.5,
        first_step_s=300.0, hang_floor_s=300.0,
    )  # fmt: skip
    run = follow(job, on_this_node(job), job.rungs[0], lambda run, is_over: None)
    assert (run.outcome, run.output) == (Outcome.FAILED, "no-such-launcher: No such file or directory")


def test_processes_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Checks the end of the pipe that a killed worker leaves."""
    mark = uuid.uuid4().hex
    words = [
        sys.executable,
        "-I",
        supervisor.__file__,
        mark,
        str(tmp_path / "run"),
        sys.executable,
        "-c",
        "import time; time.sleep(600)",
    ]
    (tmp_path / "run").mkdir()
    process = subprocess.Popen(words, stdin=subprocess.PIPE, env={"MARK": mark})
    until_s = time.monotonic() + 300
    while not supervisor.of_command(mark, process.pid) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(300) == 128 + 15
    assert supervisor.of_command(mark, process.pid) == [] and not (tmp_path / "run").exists()
