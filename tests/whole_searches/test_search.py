"""Whole searches on two CPU workers, as a user starts them, run to the end. Searches with faults are in
`tests/faults`.
"""

import dataclasses
import gzip
import json
import math
import os
import shlex
import shutil
from collections import Counter
from pathlib import Path

import pytest

import search_spaces
from platform.common.errors import NOT_RESOLVED
from platform.report.__main__ import main as report
from platform.search.setup.planning import make_plan, num_rungs
from platform.study.layout_file import read_layout
from tests.samples import csv_rows, result_of
from tests.study.parquet_reader import read_parquet
from tests.whole_searches.session import write_space
from tests.whole_searches.studies import ANSWERED, RAN, Run, nothing_twice, sessions_of, start
from trainers.profiling.trace import step_sums
from trainers.records.journal import End, Peak, RungStart, StudyHeader, TrialEnd, TrialStart
from trainers.records.measurement import Outcome
from trainers.spec.cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.search]

CAP_GIB = 0.32
SEQ_LEN = 1022
"""Tokens of a sequence, which `cp` 2 cannot cut."""
HALF_A_LINE = '{"kind":"measurement","schema":1,"measureme'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of all these tests, with a blank in its name."""
    return tmp_path_factory.mktemp("three studies")


@pytest.fixture(scope="module")
def finished(folder: Path) -> Run:
    """Searches a layout that fits at micro-batch 1 and runs out of memory at 4, another like it, and two that cannot
    run.

    Searches again, three times at most, where other processes disturbed the machine so much that no winner is named.
    """
    space = write_space(
        folder / "capped.py",
        vocab_size=8192,  # logits that outgrow the cap at micro-batch 4, not at 1
        seq_len=SEQ_LEN,
        global_batch=8,
        micro_batches=(1, 4),
        # Eager attention, which keeps all scores, is so much slower that runs soon resolve it.
        axes={"cp": (1, 2), "attention": ("sdpa", "eager"), "engine": ("ddp",)},
    )
    arguments = ("--device-memory-gib", str(CAP_GIB), "--tokens", "1e9", "--profile", "--json")
    argv = (str(space), "--name", "whole", *arguments)
    for attempt in (1, 11, 12):
        shutil.rmtree(folder / "studies", ignore_errors=True)
        with start(folder, "whole", attempt, *argv) as session:
            session_end = session.end()
        if session_end.code != NOT_RESOLVED:
            return Run(path=folder / "studies" / "whole", sessions=(session_end,))
    pytest.fail("other processes disturbed this machine in each of three searches: none named a winner")


@pytest.fixture(scope="module")
def resumed(folder: Path, finished: Run) -> Run:
    """Resumes the same study once more, after half a line was left at the journal's end."""
    with (finished.path / "journal.jsonl").open("a") as journal:
        journal.write(HALF_A_LINE)
    with start(folder, "whole", 2, "--resume", "whole", "--json") as session:
        return dataclasses.replace(finished, sessions=(*finished.sessions, session.end()))


class TestAWholeSearch:
    """A study searched to its end."""

    def test_a_trial_starts_its_workers_and_no_process_that_helps_them(self, finished: Run) -> None:
        titles = " ".join(finished.sessions[0].titles)
        assert "RayTrainWorker" in titles
        assert finished.sessions[0].worker_niceness == {os.nice(0)}, "other busy processes take the workers' cores"
        for helper in ("TrainController", "PlacementGroupCleaner", "DatasetManager", "AutoscalingCoordinator"):
            assert helper not in titles, "seconds of every trial"

    def test_it_finds_a_winner(self, finished: Run) -> None:
        (session_end,) = finished.sessions
        assert session_end.code == 0, session_end.err
        studies = shlex.quote(str(finished.path.parent))
        command = f"python -m platform.train whole --studies {studies} --tokens 1B --address local"
        assert f"\nTrain it: {command} (" in session_end.err
        printed = session_end.object["winner"]
        ran = [measurement for measurement in finished.measured if measurement.outcome is not Outcome.OOM]
        best = result_of(ran).of_study[0].winner
        assert best is not None and best.repeat
        assert (printed["id"], printed["outcome"], printed["layout"]["id"]) == (best.id, "ok", best.layout.id)

    def test_json_has_what_is_documented(self, finished: Run) -> None:
        printed = finished.sessions[0].object
        assert set(printed) == {
            *("study", "space", "recipe", "winner", "tie", "miniature", "cluster", "tokens", "measurements"),
            *("price_per_gpu_h", "comparisons", "runs", "gate", "float8_price", "profile", "unresolved"),
            *("layouts_tried", "layouts_planned", "not_tried", "caveats"),
            *("skipped", "recipes", "wall_s", "gpu_s", "end", "schema"),
        }
        assert (
            printed["end"]["exit_code"] in ANSWERED and printed["end"]["why"] == "every layout of the space was tried"
        )
        assert (printed["layouts_tried"], printed["layouts_planned"], printed["not_tried"]) == (2, 2, [])
        assert (printed["study"], printed["space"], printed["miniature"], printed["tokens"]) == (
            "whole",
            "capped",
            False,
            1e9,
        )
        assert len(printed["measurements"]) == len(finished.measured) >= 4
        for measurement in printed["measurements"]:
            assert {"id", "layout", "batch", "outcome", "tokens_per_s", "tokens_per_s_per_gpu"} <= set(measurement)
            assert {"model_tflops_per_gpu", "peak_allocated_gib", "peak_reserved_gib"} <= set(measurement)
        assert [skipped_point["layout"]["cp"] for skipped_point in printed["skipped"]] == [2, 2]
        assert printed["gpu_s"] == pytest.approx(finished.history.gpu_s) and printed["wall_s"] > 0

    def test_every_rung_ended_as_it_must(self, finished: Run) -> None:
        """Checks that micro-batch 4 failed to allocate in a worker, under the cap, that all else ran, and that two
        layouts were never run.
        """
        counts = Counter(
            (measurement.batch.micro_batch, measurement.outcome)
            for measurement in finished.history.measurements
            if not measurement.repeat
        )
        assert sum(counts[1, outcome] for outcome in RAN) == 2, "the second may be slower than the first"
        of_search = [
            measurement
            for measurement in finished.measured
            if measurement.batch.micro_batch == 1 and not measurement.repeat
        ]
        first, second = (measurement.tokens_per_s or 0.0 for measurement in of_search)
        # On a machine that was much busier with the second layout, its larger rung is left out as hopeless.
        hopeless = 2 - counts[4, Outcome.OOM]
        assert hopeless == 0 or (hopeless == 1 and second < first)
        assert counts[1, Outcome.SKIPPED] == 2 and counts.total() == 6 - hopeless
        for measurement in finished.measured:
            if measurement.outcome is Outcome.OOM:
                assert measurement.rank in (0, 1) and measurement.phase in ("forward_backward", "optimizer")
                assert measurement.asked_gib and measurement.allocated_gib and measurement.reserved_gib
                assert measurement.reserved_gib < CAP_GIB, "as it is once the failed step's tensors are given back"
                assert f"rank {measurement.rank} asked for" in measurement.reason
            else:
                assert measurement.peak_allocated_gib and measurement.peak_allocated_gib < CAP_GIB

    def test_figures_of_a_rung_agree(self, finished: Run) -> None:
        for measurement in finished.measured:
            if measurement.outcome is not Outcome.OK:
                continue
            assert (
                measurement.step_time_s
                and measurement.tokens_per_s
                and measurement.tokens_per_s_per_gpu
                and measurement.conditions
            )
            assert measurement.tokens_per_s == pytest.approx(8 * SEQ_LEN / measurement.step_time_s)
            assert measurement.tokens_per_s == pytest.approx(2 * measurement.tokens_per_s_per_gpu)
            assert len(measurement.windows_s) >= 3 and measurement.step_time_low_s and measurement.step_time_high_s
            assert measurement.step_time_low_s <= measurement.step_time_s <= measurement.step_time_high_s
            assert measurement.losses[-1] < measurement.losses[0], "it learns"
            assert measurement.step_time_derived == (measurement.measured_grad_accum < 4)
            if measurement.repeat != 1:
                assert measurement.measured_grad_accum == 3, "all but a winner's last run stop at three micro-steps"
            elif (
                measurement.step_time_s < 3.0
            ):  # far below the longest step that a winner's last run may have here, 5 s
                assert measurement.measured_grad_accum == 4
            assert measurement.import_s and measurement.startup_s and measurement.import_s < measurement.startup_s, (
                "the first rung of its trial"
            )

    def test_the_journal_tells_it_whole(self, finished: Run) -> None:
        lines = sessions_of(finished.lines())[0]
        assert isinstance(lines[0], StudyHeader) and isinstance(lines[-1], End)
        assert lines[-1].exit_code in ANSWERED and lines[0].cap_gib == CAP_GIB
        assert lines[-1].gpu_s == pytest.approx(finished.history.gpu_s)
        (peak,) = [line for line in lines if isinstance(line, Peak)]  # measured once
        assert peak.timed_s > 0
        starts = [line.trial_id for line in lines if isinstance(line, TrialStart)]
        ends = [(line.trial_id, line.state) for line in lines if isinstance(line, TrialEnd)]
        assert ends == [(trial_id, "done") for trial_id in starts]
        assert sum(isinstance(line, RungStart) for line in lines) == len(finished.measured)
        nothing_twice(finished)

    def test_the_winner_was_confirmed_and_nothing_else_ran_twice(self, finished: Run) -> None:
        confirmed = [measurement for measurement in finished.measured if measurement.repeat]
        assert confirmed and all(measurement.batch.micro_batch == 1 for measurement in confirmed)
        for measurement in confirmed:
            if measurement.repeat > 1:  # a disturbed machine left it open which layout is the fastest
                before = finished.measured[: finished.measured.index(measurement)]
                assert result_of(before).of_study[0].unresolved, measurement.layout.label
        assert len({measurement.id for measurement in confirmed}) == len(confirmed)

    def test_the_winner_was_profiled_in_a_trial_of_its_own(self, folder: Path, finished: Run) -> None:
        """Checks that every part that the model has takes a share of the profiled time, and that the kept trace gives
        the same sums again.
        """
        printed = finished.sessions[0].object["profile"]
        (profile,) = finished.history.profiles
        winner, sums = finished.sessions[0].object["winner"], profile.sums
        assert (profile.layout.id, profile.batch.micro_batch) == (
            winner["layout"]["id"],
            winner["batch"]["micro_batch"],
        )
        assert profile.trial_id not in {measurement.trial_id for measurement in finished.measured}
        for part in (sums.matmul_s, sums.attention_s, sums.loss_s, sums.optimizer_s, sums.other_s):
            assert 0 < part < sums.wall_s
        assert sums.communication_exposed_s + sums.communication_hidden_s > 0
        assert sums.loss_s > sums.matmul_s / 4, "a vocabulary of 8192 over a width of 32"
        assert printed["wall_s"] == pytest.approx(sums.wall_s) and printed["trace"] == profile.trace
        with gzip.open(finished.path / profile.trace) as file:
            again = step_sums(json.load(file), grad_accum=profile.batch.grad_accum)
        assert again == sums
        assert 0 < profile.trace_mib < 5

    def test_progress_is_told_on_standard_error(self, finished: Run) -> None:
        lines = finished.sessions[0].err.splitlines()
        assert any(line.startswith("trial 1/2: DDP") and "starting" in line for line in lines)
        assert any(
            line.startswith("trial 2/2: DDP, sync last, eager") and "MBS 1 x 4 | best: " in line for line in lines
        )
        assert any(line.startswith("oom: DDP") and "asked for" in line for line in lines)
        assert any(line.startswith("ok: DDP") and "tokens/s" in line for line in lines)
        assert not any("trial 3/2" in line for line in lines), "a confirming trial is none of the two"
        assert any("every layout of the space was tried" in line for line in lines)
        assert any(line.startswith("MLflow: ") and line.endswith(", then open") for line in lines)
        assert any("  layouts  http://127.0.0.1:5000/#/experiments/" in line for line in lines)

    def test_mlflow_has_one_run_for_the_study_and_one_for_each_measurement(self, folder: Path, finished: Run) -> None:
        in_mlflow(folder, finished)

    def test_the_files_say_the_same(self, finished: Run) -> None:
        assert read_parquet(finished.path / "measurements.parquet") == finished.history.measurements
        rows = csv_rows(finished.path / "measurements.csv")
        assert Counter(row["outcome"] for row in rows) == Counter(
            measurement.outcome.value for measurement in finished.history.measurements
        )
        winner = finished.sessions[0].object["winner"]
        layout_file = read_layout(finished.path / "layout.json")
        assert layout_file.batch and layout_file.recipe
        assert (layout_file.layout.id, layout_file.recipe.id) == (winner["layout"]["id"], winner["recipe"])
        assert layout_file.batch.micro_batch == winner["batch"]["micro_batch"]

    def test_a_report_made_afterwards_is_the_same(self, finished: Run, capsys: pytest.CaptureFixture[str]) -> None:
        assert report(["whole", "--studies", str(finished.path.parent), "--json", "--no-mlflow"]) in ANSWERED
        assert json.loads(capsys.readouterr().out) == finished.sessions[0].object

    def test_the_winner_s_file_is_read_back(self, folder: Path, finished: Run) -> None:
        path = str(finished.path / "layout.json")
        with start(folder, "none", 1, "--layout", path, "--dry-run") as session:
            session_end = session.end()
        winner = finished.sessions[0].object["winner"]
        assert session_end.code == 0, session_end.err
        assert (
            f"would run  {winner['layout']['label']}, micro-batch 1" in session_end.out
            and "1 layout with" in session_end.out
        )
        assert not (folder / "studies" / "none").exists()

    def test_a_finished_study_resumed_runs_nothing_and_says_what_it_found(
        self, folder: Path, finished: Run, resumed: Run
    ) -> None:
        first, second = resumed.sessions
        assert second.code == 0, second.err
        count = len(first.object["measurements"])
        assert f"Kept {count} measurements of the journal; nothing is left to run on " in second.err
        assert second.object == first.object
        (lines,) = sessions_of(resumed.lines())
        assert isinstance(lines[-1], End) and lines[-1].tried_all
        assert "raylet" in " ".join(first.titles) and "raylet" not in " ".join(second.titles), "Ray is not started"
        in_mlflow(folder, resumed)

    def test_half_a_line_is_kept_aside_and_told(self, resumed: Run) -> None:
        shown = next(line for line in resumed.sessions[1].err.splitlines() if not line.endswith(" s so far"))
        assert "journal.jsonl could not be used (not a whole JSON object)" in shown and "the rest is used" in shown
        assert json.loads((resumed.path / "journal.rejected.jsonl").read_text())["text"] == HALF_A_LINE


def in_mlflow(folder: Path, run: Run) -> None:
    """Checks that MLflow has one parent, one child for each measurement that is not skipped, with its outcome, and one
    for each gate.
    """
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'studies' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("capped")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    (parent,) = [tracked_run for tracked_run in runs if "mlflow.parentRunId" not in tracked_run.data.tags]
    assert (parent.data.tags["study"], parent.info.status) == ("whole", "FINISHED")
    children = {tracked_run.data.tags["entry_id"]: tracked_run for tracked_run in runs if tracked_run is not parent}
    assert len(children) == len(runs) - 1, "no measurement has two runs"
    others = [entry_id for entry_id, child in children.items() if "measurement_id" not in child.data.tags]
    roles = Counter(children.pop(other).data.tags["role"] for other in others)
    assert (roles["gate"], roles["profile"]) == (len(run.history.gates), len(run.history.profiles))
    assert roles.total() == len(others)
    assert set(children) == {measurement.id for measurement in run.measured}
    for measurement in run.measured:
        child = children[measurement.id]
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert child.data.tags["outcome"] == measurement.outcome.value
        assert child.info.status == ("FINISHED" if measurement.outcome in RAN else "FAILED")
        speed = math.nan if measurement.tokens_per_s is None else measurement.tokens_per_s
        assert child.data.metrics["tokens_per_s"] == pytest.approx(speed, rel=1e-3, nan_ok=True)
        assert child.data.params["engine"] == measurement.layout.engine


class TestNothingFits:
    """The built-in space on a machine without a GPU, where it is a miniature, under a cap that no layout can meet."""

    def test_it_says_so_and_what_came_nearest(self, folder: Path) -> None:
        argv = ("bloom7b", "--name", "nothing", "--device-memory-gib", "0.001", "--json")
        with start(folder, "nothing", 1, *argv) as session:
            session_end = session.end()
        assert session_end.code == 1, session_end.err
        plain = "bloom7b cannot be measured here, no node has a GPU: a small search runs on bloom-7b1-miniature"
        assert plain in session_end.err
        printed = session_end.object
        assert printed["miniature"] is True and printed["winner"] is None and printed["measurements"] == []
        assert len(printed["skipped"]) >= 3 and all(
            "a device has 1 MiB" in skipped_point["reason"] for skipped_point in printed["skipped"]
        )
        assert not (folder / "studies" / "nothing" / "layout.json").exists()


def test_the_miniature_promises_what_the_default_search_must_show() -> None:
    """Checks that its plan has all engines and enough rungs on two workers, runs again, and one out of memory."""
    miniature = search_spaces.load("bloom7b").miniature
    assert miniature is not None and miniature.num_workers == 2
    cluster = Cluster(device_kind="cpu", device="any", device_memory_gib=8.0, devices_per_node=2)
    plan = make_plan(*miniature.candidates(2), cluster, miniature.device_memory_gib)
    assert {candidate.layout.engine for candidate in plan.candidates} == {"ddp", "fsdp", "deepspeed"}
    assert num_rungs(plan.candidates) == 2 * len(plan.candidates) == 6, "no two points that are as fast as each other"
    assert (miniature.finalists, miniature.repeats) == (2, 3), "pairs of runs, or nothing is resolved"
    assert miniature.is_stand_in and max(miniature.micro_batches) == 8
