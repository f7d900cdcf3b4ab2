"""Progress lines: their content, and that following a journal reports each thing once."""

import dataclasses
import re
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from platform.report.follow import followed
from platform.report.progress import (
    SearchProgress,
    TrialProgress,
    count_outcomes,
    measurement_line,
    progress_line,
    set_apart,
)
from platform.study.history import History
from platform.study.journal import Tail
from tests.samples import CLUSTER, RECIPE, header, layout, measurement, miniature, oom, skipped
from trainers.records.journal import Measured, RungStart, TrialStart
from trainers.records.journal_lines import record
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout


def test_a_line_says_trial_best_outcomes_and_time() -> None:
    line = progress_line(
        SearchProgress(
            trial=3,
            num_trials=12,
            running=(TrialProgress(layout=layout(), ladder=(2,), batch=BatchPoint(micro_batch=2, grad_accum=64)),),
            incumbent=measurement(step_time_derived=True),
            outcomes=count_outcomes([measurement(), oom(), oom(), skipped()]),
            elapsed_s=125,
            left_s=3700,
            gpu_s=500,
            gpu_left_s=1500,
            miniature=True,
        )
    )
    assert line == (
        "[miniature] trial 3/12: FSDP2 stage 3, sync last, eager, MBS 2 x 64"
        " | best: 40,000~ tokens/s (FSDP2 stage 3, sync last, eager, MBS 1)"
        " | 3 measurements: 1 ok, 2 oom, 1 skipped | 2 min 5 s, 1 h 1 min left | 500 GPU-s, 1,500 left"
    )


def test_a_line_before_anything_happened() -> None:
    line = progress_line(
        SearchProgress(
            trial=1,
            num_trials=None,
            running=(TrialProgress(layout=layout(), ladder=(1,)),) * 3,
            incumbent=None,
            outcomes=Counter[Outcome](),
            elapsed_s=0,
            left_s=None,
            gpu_s=0,
        )
    )
    assert line == (
        "trial 1: FSDP2 stage 3, sync last, eager, starting, beside 2 others | best: none yet"
        " | nothing measured yet | 0 s | 0 GPU-s"
    )


def test_a_finished_point_on_one_line() -> None:
    assert (
        measurement_line(measurement())
        == "ok: FSDP2 stage 3, sync last, eager, MBS 1 x 128 | 40,000 tokens/s | 61.2 GiB"
    )
    output = measurement_line(oom(reason="first\nsecond"))
    assert output.startswith("oom: ") and output.endswith("| first second")
    output = measurement_line(measurement(others_gib=(float("nan"), 22.8, 0.0)))
    assert output.endswith("| 61.2 GiB | other processes held 22.8 GiB of a GPU")
    assert measurement_line(measurement(others_gib=(0.0, 0.0))) == measurement_line(measurement())
    small = measurement(recipe=miniature(), on=Layout(engine="ddp", dp_replicate=2))
    assert measurement_line(small).startswith("[miniature] ok: DDP")


class _Budget:
    def __init__(self, time_s: float = float("inf"), gpu_s: float = float("inf")) -> None:
        self._time_s, self._gpu_s = time_s, gpu_s

    def time_left_s(self) -> float:
        return self._time_s

    def gpu_left_s(self) -> float:
        return self._gpu_s

    def kept_s(self) -> float:
        return 0.0


def begun(journal: Path) -> tuple[Tail, History]:
    """Returns a reader of what follows in a journal, and its history so far."""
    tail = Tail(journal)
    return tail, History(tail.read())


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock of what follows a search: a busy machine takes more than a second for a line."""
    monkeypatch.setattr("platform.report.follow.time", SimpleNamespace(monotonic=lambda: 100.0))


@pytest.mark.usefixtures("still_clock")
def test_device_seconds_are_those_of_workers_where_there_is_no_gpu(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "journal.jsonl"
    record(journal, header(cluster=dataclasses.replace(CLUSTER, device_kind="cpu")))
    with followed(*begun(journal), _Budget(), total=7):
        record(journal, TrialStart(trial_id="t1", key="k", recipe=RECIPE, layout=layout(), micro_batches=(1,)))
    output = capfd.readouterr().err
    assert output.rstrip().endswith(" | 0 worker-s") and "GPU" not in output


def test_following_tells_what_is_new_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "journal.jsonl"
    record(journal, header())
    record(journal, Measured(measurement=measurement(tokens_per_s=11000.0)))
    with followed(*begun(journal), _Budget(), total=7):
        start = TrialStart(trial_id="t2", key="k", recipe=RECIPE, layout=layout(prefetch=2), micro_batches=(1,))
        record(journal, start)
        rung = RungStart(trial_id="t2", batch=BatchPoint(micro_batch=1, grad_accum=128), deadline_s=60)
        output, until_s = "", time.monotonic() + 300
        for num_lines, next_line in ((1, rung), (2, None)):  # a look at both lines shows the last one alone
            while output.count("\n") < num_lines:
                assert time.monotonic() < until_s, output
                time.sleep(0.05)
                output += capfd.readouterr().err
            if next_line is not None:
                record(journal, next_line)
        record(journal, Measured(measurement=measurement(on=layout(prefetch=2), tokens_per_s=22000.0)))
    captured = capfd.readouterr()
    assert captured.out == ""
    lines = (output + captured.err).splitlines()
    assert len(lines) == 3, lines
    assert "trial 1/7" in lines[0] and "starting" in lines[0] and "best: 11,000" in lines[0]
    assert "MBS 1 x 128" in lines[1] and "prefetch 2" in lines[1]
    assert lines[2].startswith("ok: ") and "22,000 tokens/s" in lines[2]


def test_the_best_is_that_of_the_recipe_that_is_searched(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal, smaller = tmp_path / "journal.jsonl", dataclasses.replace(RECIPE, global_batch=128)
    record(journal, header(recipes=(RECIPE, smaller)))
    for recipe, speed in ((RECIPE, 11000.0), (smaller, 9000.0)):
        record(journal, Measured(measurement=measurement(recipe=recipe, tokens_per_s=speed)))
    with followed(*begun(journal), _Budget(), total=7):
        for recipe in (smaller, RECIPE):
            record(journal, TrialStart(trial_id="t9", key="k", recipe=recipe, layout=layout(), micro_batches=(1,)))
    first, second = capfd.readouterr().err.splitlines()
    assert " | best of global batch 128: 9,000 tokens/s (" in first
    assert " | best of global batch 512: 11,000 tokens/s (" in second


def test_a_recipe_that_nothing_in_its_label_sets_apart_is_named_whole() -> None:
    slower = dataclasses.replace(RECIPE, learning_rate=RECIPE.learning_rate / 2)
    assert set_apart(slower, (RECIPE, slower)) == RECIPE.label


@pytest.mark.usefixtures("still_clock")
@pytest.mark.parametrize(
    ("budget", "shown"),
    [
        (_Budget(), " | 0 GPU-s"),
        (_Budget(time_s=90.0), ", 1 min 30 s left | 0 GPU-s"),
        (_Budget(time_s=30.0, gpu_s=120.0), ", 30 s left | 0 GPU-s, 120 left"),
    ],
)
def test_what_a_budget_leaves_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], budget: _Budget, shown: str
) -> None:
    journal = tmp_path / "journal.jsonl"
    record(journal, header())
    with followed(*begun(journal), budget, total=7):
        record(journal, TrialStart(trial_id="t1", key="k", recipe=RECIPE, layout=layout(), micro_batches=(1,)))
    assert re.search(rf"\| \d+ s{re.escape(shown)}$", capfd.readouterr().err.rstrip())  # whatever the disk took


def test_a_count_of_trials_stays_within_its_total_and_final_runs_have_their_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "journal.jsonl"
    record(journal, header())
    again, gate, late = ("a", (1,), 1), ("b", (), 0), ("c", (1,), 0)
    starts = [*((key, (1,), 0) for key in "aab"), again, gate, late]
    with followed(*begun(journal), _Budget(), total=2):
        for number, (key, rungs, repeat) in enumerate(starts):
            start = TrialStart(
                trial_id=f"t{number}", key=key, recipe=RECIPE, layout=layout(), micro_batches=rungs, repeat=repeat
            )
            record(journal, start)
    shown = [line.partition(":")[0] for line in capfd.readouterr().err.splitlines()]
    assert shown == ["trial 1/2", "trial 1/2", "trial 2/2", "final run 1", "final run 2", "trial 3"]
