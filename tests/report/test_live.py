"""The live view: a frame's content at any width, and that the terminal is taken and released."""

import dataclasses
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from platform.report.live import frame
from platform.report.progress import SearchProgress, TrialProgress, count_outcomes, progress_line
from tests.samples import layout, measurement, oom
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout

ROOT = Path(__file__).parents[2]
LAST = (
    measurement(tokens_per_s=11000.0),
    measurement(on=layout(checkpointing="full"), tokens_per_s=12000.0, outcome=Outcome.THRASH, reason="3 retries"),
    oom(on=Layout(engine="ddp", dp_replicate=4), micro_batch=4),
)
TRIAL = TrialProgress(
    layout=layout(),
    ladder=(1, 2, 4, 8),
    batch=BatchPoint(micro_batch=2, grad_accum=64),
    rungs={1: Outcome.OK},
    running_s=14.2,
)
PROGRESS = SearchProgress(
    trial=3,
    num_trials=12,
    running=(TRIAL,),
    incumbent=LAST[0],
    outcomes=count_outcomes(LAST),
    elapsed_s=125,
    left_s=3700,
    gpu_s=500,
    gpu_left_s=1500,
    title="bloom7b-1: bloom-7b1, on 4 x Made-up GPU",
    last=LAST,
    predicted=(
        "11,500 tokens/s (4.5% too fast), 60.1 GiB",
        "12,600 tokens/s (5.0% too fast), 58.2 GiB",
        "900 tokens/s, 90.2 GiB",
    ),
    model_error="6.0%, 2.0% corrected",
)


def drawn(progress: SearchProgress, *, width: int, height: int = 30) -> list[str]:
    """Returns a frame's lines."""
    console = Console(width=width, height=height, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(frame(progress, height=height))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_it_says_how_the_search_stands(width: int) -> None:
    lines = drawn(PROGRESS, width=width)
    assert max(map(len, lines)) <= width and len(lines) == 16 and lines[-1] == ""
    text = "\n".join(lines)
    for words in (
        "trials    3 of 12", "2 min 5 s, 1 h 1 min left | 500 GPU-s", "micro-batch 1 ok, 2 x 64 runs, 4, 8; 14 s",
        "best      11,000 tokens/s", "1 ok, 1 thrash, 1 oom", "last      oom    MBS 4: DDP, sync last",
        "thrash  12,000 tokens/s  61.2 GiB",
        "predicted 12,600 tokens/s (5.0% too fast)",
        "model     error so far 6.0%, 2.0% corrected",
    ):  # fmt: skip
        assert words in text, f"{words} in {text}"


def test_of_several_recipes_it_names_the_one_whose_best_it_shows() -> None:
    text = "\n".join(drawn(dataclasses.replace(PROGRESS, recipe="global batch 128"), width=80))
    assert "best      of global batch 128: 11,000 tokens/s (FSDP2" in text


def test_trials_that_measure_nothing_say_what_they_are_for() -> None:
    trial = dataclasses.replace(TRIAL, ladder=(), rungs={}, batch=None)
    bare = dataclasses.replace(PROGRESS, running=(trial,))
    assert any(line.strip() == "numerics gate; 14 s" for line in drawn(bare, width=80))
    assert ", numerics gate | " in progress_line(bare)
    profiling = dataclasses.replace(bare, running=(dataclasses.replace(trial, profiles=True),))
    assert any(line.strip() == "profile; 14 s" for line in drawn(profiling, width=80))
    assert ", to be profiled | " in progress_line(profiling)


def test_a_low_terminal_shows_fewer_of_the_last_outcomes() -> None:
    assert len(drawn(PROGRESS, width=80, height=14)) == 12
    plain = dataclasses.replace(PROGRESS, predicted=(), model_error="")
    assert len(drawn(plain, width=80)) == 12 and len(drawn(plain, width=80, height=12)) == 11


@pytest.mark.parametrize(("lanes", "height"), [(2, 30), (5, 30), (64, 30), (64, 14)])
def test_trials_side_by_side_have_a_line_each_as_far_as_there_is_room(lanes: int, height: int) -> None:
    trials = tuple(dataclasses.replace(TRIAL, nodes=(f"10.0.0.{number}",)) for number in range(lanes))
    lines = drawn(dataclasses.replace(PROGRESS, running=trials), width=120, height=height)
    shown = [line for line in lines if "micro-batch 1 ok, 2 x 64 runs, 4, 8; 14 s  FSDP2" in line]
    assert len(lines) <= height and 2 <= len(shown) <= lanes
    assert shown[0].startswith("running   10.0.0.0  ") and shown[1].startswith("          10.0.0.1  ")
    left = lanes - len(shown)
    assert (f"          and {left} more" in lines) == bool(left)


def test_of_the_time_that_is_left_it_says_what_is_kept_for_final_runs() -> None:
    reserving = dataclasses.replace(PROGRESS, kept_s=100.0)
    lines = drawn(reserving, width=60)
    assert len(lines) == 17 and lines[4].strip() == "1 min 40 s of it kept for final runs"
    assert len(drawn(reserving, width=80, height=14)) <= 14
    assert progress_line(reserving).endswith("1,500 left | 1 min 40 s of it kept for final runs")


def test_a_final_run_says_that_it_runs_again() -> None:
    again = dataclasses.replace(TRIAL, ladder=(2,), rungs={})
    final = dataclasses.replace(PROGRESS, final_run=2, running=(again,))
    assert any(
        line.strip() == "micro-batch 2 x 64 runs again in fresh processes; 14 s" for line in drawn(final, width=80)
    )


def test_rungs_of_one_layout_are_told_apart_in_a_narrow_terminal() -> None:
    rungs = tuple(measurement(micro_batch=rung, repeat=rung - 1) for rung in (1, 2))
    lines = drawn(dataclasses.replace(PROGRESS, last=rungs, predicted=()), width=80)
    assert sum("MBS 1: FSDP2" in line for line in lines) == sum("MBS 2, run 1: FSDP2" in line for line in lines) == 1


def test_a_final_run_is_named_beside_the_layouts_searched() -> None:
    final = dataclasses.replace(PROGRESS, final_run=2)
    assert "trials    3 of 12 searched, 2 final runs" in drawn(final, width=80)
    assert "trials    3 searched, 2 final runs" in drawn(dataclasses.replace(final, num_trials=None), width=80)


def test_before_the_first_and_between_trials() -> None:
    early = SearchProgress(
        trial=0, num_trials=None, incumbent=None, outcomes=count_outcomes(()),
        elapsed_s=0, left_s=None, gpu_s=0, to_go="3 min 0 s",
    )  # fmt: skip
    text = "\n".join(drawn(early, width=80))
    assert "no trial" in text and "none yet" in text and "about 3 min 0 s to go" in text


FOLLOWING = """
import conftest
import sys, time
from pathlib import Path
from platform.common.output import print_line
from platform.report.follow import followed
from tests.samples import RECIPE, header, layout, measurement
from tests.report.test_progress import _Budget, begun
from trainers.spec.cluster import Cluster
from trainers.records.journal import Measured, TrialStart
from trainers.records.journal_lines import record
journal = Path(sys.argv[1])
known = Cluster(
    device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=4, capability=(9, 0)
)
record(journal, header(cluster=known))
try:
    with followed(*begun(journal), _Budget(), total=7):
        record(journal, TrialStart(trial_id="t1", key="k", recipe=RECIPE, layout=layout(), micro_batches=(1,)))
        record(journal, Measured(measurement=measurement(tokens_per_s=22000.0)))
        time.sleep(1.2)
        print_line("something beside it")
        if sys.argv[2] == "interrupted":
            raise KeyboardInterrupt
except KeyboardInterrupt:
    print_line("Interrupted.")
print("the result")
"""


def on_terminal(command: Sequence[str], environment: dict[str, str]) -> tuple[str, str]:
    """Returns what went to standard output, a pipe, and to the terminal on standard error."""
    terminal, side = pty.openpty()
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=side)
    os.close(side)
    shown = b""
    while select.select([terminal], [], [], 600)[0]:
        try:
            block = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            break
        if not block:
            break
        shown += block
    os.close(terminal)
    out = process.communicate(timeout=300)[0]
    return out.decode(), shown.decode()


@pytest.mark.parametrize("how", ["ended", "interrupted"])
def test_a_terminal_is_drawn_on_and_given_back(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", FOLLOWING, str(tmp_path / "journal.jsonl"), how]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    out, shown = on_terminal(command, environment)
    assert out == "the result\n"
    assert shown.count("\x1b[?25l") == 1 and shown.rindex("\x1b[?25h") > shown.index("\x1b[?25l")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert "22,000 tokens/s" in plain and "something beside it" in plain
    assert re.search(r"predicted [0-9,]+ tokens/s \([0-9.]+% too (fast|slow)\)", plain)
    assert re.search(r"model +error so far [0-9.]+%, [0-9.]+% corrected", plain)
    assert ("Interrupted." in plain) == (how == "interrupted")


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FOLLOWING, str(tmp_path / "journal.jsonl"), "ended"]
    out, shown = on_terminal(command, {**os.environ, "TERM": "dumb"})
    assert out == "the result\n" and "\x1b" not in shown
    assert shown.splitlines()[0].startswith("trial 1/7: FSDP2 stage 3") and "| model's error so far " in shown
