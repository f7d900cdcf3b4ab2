"""Whole searches on two CPU workers, as a user starts them: run to the end, interrupted, killed, resumed, hurt.

Three studies are run, each once for all that is looked at in it. Everything starts a Ray of its own.
"""

import dataclasses
import json
import math
import re
import shlex
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

import search_spaces
from platform.planning import make_plan
from platform.report import main as report
from platform.reports.files import read_layout
from platform.reports.table import read_csv
from platform.study.history import History
from platform.study.journal import Tail
from platform.study.parquet import read_parquet
from platform.study.study import read
from tests.search.session import Ended, Session, write_space
from trainers.cluster import Cluster
from trainers.journal import End, Line, Measured, Peak, Resume, RungStart, StudyHeader, TrialEnd, TrialStart
from trainers.measurement import Measurement, Outcome

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.timeout(1200)]

CAP_GIB = 0.32
SLOW = {"hidden_size": 256, "vocab_size": 8192, "seq_len": 512}
"""A model whose steps take half a second: a test can do something in the middle of a rung."""
IN_ORDER = ("--searcher", "sweep")
"""Layouts one after another, so that a test knows which one it hurts."""
HALF_A_LINE = '{"kind":"measurement","schema":1,"measureme'


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A study after some sessions."""

    path: Path
    sessions: tuple[Ended, ...]

    @property
    def history(self) -> History:
        return read(self.path, last=True)[0]

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """What ran, in the order of the journal."""
        return tuple(each for each in self.history.measurements if each.outcome is not Outcome.SKIPPED)

    def lines(self) -> list[Line]:
        """Every readable line of the journal."""
        return Tail(self.path / "journal.jsonl").read(last=True)


def sessions_of(lines: Sequence[Line]) -> list[list[Line]]:
    """The lines of each session."""
    found: list[list[Line]] = []
    for line in lines:
        if isinstance(line, (StudyHeader, Resume)):
            found.append([])
        found[-1].append(line)
    return found


def nothing_twice(run: Run) -> None:
    """No measurement is there twice, and no rung that was finished began again."""
    ids = [line.measurement.id for line in run.lines() if isinstance(line, Measured)]
    assert len(ids) == len(set(ids))
    keys = {each.trial_id: each.key for each in run.history.trials}
    done: set[tuple[str, int, int]] = set()
    repeats: dict[str, int] = {
        line.measurement.trial_id: line.measurement.repeat for line in run.lines() if isinstance(line, Measured)
    }
    for line in run.lines():
        if isinstance(line, RungStart):
            rung = (keys[line.trial_id], line.batch.micro_batch, repeats.get(line.trial_id, 0))
            assert rung not in done, f"{rung} was finished and began again"
        elif isinstance(line, Measured) and line.measurement.trial_id in keys:
            each = line.measurement
            done.add((keys[each.trial_id], each.batch.micro_batch, each.repeat))


def start(folder: Path, name: str, number: int, *argv: str) -> Session:
    """One more session of the study `name` in `folder`."""
    places = ("--studies", str(folder / "studies"), "--address", "local")
    return Session(folder / f"log-{name}-{number}", folder / "studies" / name / "journal.jsonl", *argv, *places)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of it happens; a folder with a blank in its name."""
    return tmp_path_factory.mktemp("three studies")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Run:
    """A layout that fits at micro-batch 1 and runs out of memory at 4, another one so too, and two that cannot run."""
    space = write_space(
        folder / "capped.py",
        vocab_size=8192,  # logits that outgrow the cap at micro-batch 4, not at 1
        seq_len=1024,
        global_batch=8,
        micro_batches=(1, 4),
        axes={"tp": (1, 2), "zero_stage": (0, 3), "engine": ("ddp", "fsdp")},
    )
    argv = (str(space), "--name", "whole", "--device-memory-gib", str(CAP_GIB), "--json", "--tokens", "1e9")
    with start(folder, "whole", 1, *argv) as session:
        return Run(path=folder / "studies" / "whole", sessions=(session.end(),))


@pytest.fixture(scope="module")
def resumed(folder: Path, whole: Run) -> Run:
    """The same study resumed once more, after half a line was left at the journal's end."""
    with (whole.path / "journal.jsonl").open("a") as journal:
        journal.write(HALF_A_LINE)
    with start(folder, "whole", 2, "--resume", "whole", "--json") as session:
        return dataclasses.replace(whole, sessions=(*whole.sessions, session.end()))


class TestAWholeSearch:
    """A study searched to its end."""

    def test_it_finds_a_winner(self, whole: Run) -> None:
        (ended,) = whole.sessions
        assert ended.code == 0, ended.err
        said = ended.object["winner"]
        best = max((each for each in whole.measured if each.repeat == 1), key=lambda each: each.tokens_per_s or 0.0)
        assert (said["id"], said["outcome"], said["layout"]["id"]) == (best.id, "ok", best.layout.id)

    def test_json_has_what_is_documented(self, whole: Run) -> None:
        said = whole.sessions[0].object
        assert set(said) == {
            *("study", "space", "recipe", "winner", "tie", "miniature", "cluster", "tokens", "measurements"),
            *("price_per_gpu_h", "comparisons", "runs", "gate"),
            *("skipped", "recipes", "wall_s", "gpu_s"),
        }
        assert (said["study"], said["space"], said["miniature"], said["tokens"]) == ("whole", "capped", False, 1e9)
        assert len(said["measurements"]) == len(whole.measured) >= 5
        for each in said["measurements"]:
            assert {"id", "layout", "batch", "outcome", "tokens_per_s", "tokens_per_s_per_gpu"} <= set(each)
            assert {"model_tflops_per_gpu", "peak_allocated_gib", "peak_reserved_gib"} <= set(each)
        assert [each["layout"]["tp"] for each in said["skipped"]] == [2, 2]
        assert said["gpu_s"] == pytest.approx(whole.history.gpu_s) and said["wall_s"] > 0

    def test_every_rung_ended_as_it_must(self, whole: Run) -> None:
        """Micro-batch 4 failed to allocate in a worker, under the cap; all else ran; two layouts were never run."""
        found = Counter(
            (each.batch.micro_batch, each.outcome) for each in whole.history.measurements if not each.repeat
        )
        assert found[1, Outcome.OK] == 2 and found[4, Outcome.OOM] == 2 and found[1, Outcome.SKIPPED] == 2
        assert found.total() == 6
        for each in whole.measured:
            if each.outcome is Outcome.OOM:
                assert each.rank in (0, 1) and each.phase in ("forward_backward", "optimizer")
                assert each.asked_gib and each.allocated_gib and each.reserved_gib
                assert each.reserved_gib < CAP_GIB < each.reserved_gib + each.asked_gib
                assert f"rank {each.rank} asked for" in each.reason
            else:
                assert each.peak_allocated_gib and each.peak_allocated_gib < CAP_GIB

    def test_figures_of_a_rung_agree(self, whole: Run) -> None:
        for each in whole.measured:
            if each.outcome is not Outcome.OK:
                continue
            assert each.step_time_s and each.tokens_per_s and each.tokens_per_s_per_gpu and each.conditions
            assert each.tokens_per_s == pytest.approx(8 * 1024 / each.step_time_s)
            assert each.tokens_per_s == pytest.approx(2 * each.tokens_per_s_per_gpu)
            assert len(each.windows_s) >= 3 and each.step_time_low_s and each.step_time_high_s
            assert each.step_time_low_s <= each.step_time_s <= each.step_time_high_s
            assert each.losses[-1] < each.losses[0], "it learns"
            assert each.step_time_derived == (each.repeat == 0), "a search's own run stops at three micro-steps"
            assert each.measured_grad_accum == (4 if each.repeat else 3)

    def test_the_journal_tells_it_whole(self, whole: Run) -> None:
        lines = sessions_of(whole.lines())[0]
        assert isinstance(lines[0], StudyHeader) and isinstance(lines[-1], End)
        assert (lines[-1].exit_code, lines[0].cap_gib) == (0, CAP_GIB)
        assert lines[-1].gpu_s == pytest.approx(whole.history.gpu_s)
        assert sum(isinstance(line, Peak) for line in lines) == 1, "the matrix-product peak is measured once"
        starts = [line.trial_id for line in lines if isinstance(line, TrialStart)]
        ends = [(line.trial_id, line.state) for line in lines if isinstance(line, TrialEnd)]
        assert ends == [(trial_id, "done") for trial_id in starts]
        assert sum(isinstance(line, RungStart) for line in lines) == len(whole.measured)
        nothing_twice(whole)

    def test_the_winner_was_confirmed_and_nothing_else_ran_twice(self, whole: Run) -> None:
        confirmed = [each for each in whole.measured if each.repeat]
        assert 1 <= len(confirmed) <= 2 and all(each.batch.micro_batch == 1 for each in confirmed)
        assert len({each.id for each in confirmed}) == len(confirmed)

    def test_progress_is_told_on_standard_error(self, whole: Run) -> None:
        lines = whole.sessions[0].err.splitlines()
        assert any(line.startswith("trial 1/2: DDP") and "starting" in line for line in lines)
        assert any(line.startswith("trial 2/2: FSDP2 stage 3") and "MBS 1 x 4 | best: " in line for line in lines)
        assert any(line.startswith("oom: DDP") and "asked for" in line for line in lines)
        assert any(line.startswith("ok: DDP") and "tokens/s" in line for line in lines)
        assert not any("trial 3/2" in line for line in lines), "a confirming trial is none of the two"
        assert any(line == "Ended: every layout of the space was tried." for line in lines)
        assert any("mlflow ui --backend-store-uri 'sqlite:///" in line for line in lines)  # a blank is in the path

    def test_mlflow_has_one_run_for_the_study_and_one_for_each_measurement(self, folder: Path, whole: Run) -> None:
        in_mlflow(folder, whole)

    def test_the_files_say_the_same(self, whole: Run) -> None:
        assert read_parquet(whole.path / "measurements.parquet") == whole.history.measurements
        rows = read_csv(whole.path / "measurements.csv")
        assert Counter(row.outcome for row in rows) == Counter(
            each.outcome.value for each in whole.history.measurements
        )
        winner = whole.sessions[0].object["winner"]
        found = read_layout(whole.path / "layout.json")
        assert found.batch and found.recipe
        assert (found.layout.id, found.recipe.id) == (winner["layout"]["id"], winner["recipe"])
        assert found.batch.micro_batch == winner["batch"]["micro_batch"]

    def test_a_report_made_afterwards_is_the_same(self, whole: Run, capsys: pytest.CaptureFixture[str]) -> None:
        assert report(["whole", "--studies", str(whole.path.parent), "--json", "--no-mlflow"]) == 0
        assert json.loads(capsys.readouterr().out) == whole.sessions[0].object

    def test_the_winner_s_file_is_read_back(self, folder: Path, whole: Run) -> None:
        path = str(whole.path / "layout.json")
        with start(folder, "none", 1, "--layout", path, "--dry-run") as session:
            ended = session.end()
        winner = whole.sessions[0].object["winner"]
        assert ended.code == 0, ended.err
        assert f"would run  {winner['layout']['label']}, micro-batch 1" in ended.out and "1 trial with" in ended.out
        assert not (folder / "studies" / "none").exists()

    def test_a_finished_study_resumed_runs_nothing_and_says_what_it_found(self, folder: Path, resumed: Run) -> None:
        first, second = resumed.sessions
        assert second.code == 0, second.err
        count = len(first.object["measurements"])
        assert f"Kept {count} measurements that the journal has; something is left to run of 0 layouts." in second.err
        assert second.object["measurements"] == first.object["measurements"]
        before, after = sessions_of(resumed.lines())
        assert [type(line) for line in after] == [Resume, End]
        assert any(isinstance(line, TrialStart) for line in before)
        in_mlflow(folder, resumed)

    def test_half_a_line_is_kept_aside_and_told(self, resumed: Run) -> None:
        said = resumed.sessions[1].err.splitlines()[0]
        assert "journal.jsonl could not be used (not a whole JSON object)" in said and "the rest is used" in said
        assert json.loads((resumed.path / "journal.rejected.jsonl").read_text())["text"] == HALF_A_LINE


def in_mlflow(folder: Path, run: Run) -> None:
    """One parent, one child for each measurement that is not skipped, with its outcome, and one for each gate."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'studies' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("capped")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    (parent,) = [each for each in runs if "mlflow.parentRunId" not in each.data.tags]
    assert (parent.data.tags["study"], parent.info.status) == ("whole", "FINISHED")
    children = {each.data.tags["entry_id"]: each for each in runs if each is not parent}
    assert len(children) == len(runs) - 1, "no measurement has two runs"
    for gate in [each for each, child in children.items() if "measurement_id" not in child.data.tags]:
        assert "gate_loss" in children.pop(gate).data.metrics
    assert len(runs) - 1 - len(children) == len(run.history.gates)
    assert set(children) == {each.id for each in run.measured}
    for each in run.measured:
        child = children[each.id]
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert child.data.tags["outcome"] == each.outcome.value
        assert child.info.status == ("FINISHED" if each.outcome is Outcome.OK else "FAILED")
        speed = math.nan if each.tokens_per_s is None else each.tokens_per_s
        assert child.data.metrics["tokens_per_s"] == pytest.approx(speed, nan_ok=True)
        assert child.data.params["engine"] == each.layout.engine


@pytest.fixture(scope="module")
def cut(folder: Path) -> Run:
    """Ctrl-C in a rung, SIGKILL of the driver in another, then left alone."""
    space = write_space(folder / "short.py", axes={"engine": ("ddp",), "checkpointing": ("none", "full")}, **SLOW)
    with start(folder, "cut", 1, str(space), "--name", "cut", *IN_ORDER) as session:
        session.wait_for("the second rung", lambda lines: in_rung(lines, trial=1, micro_batch=2))
        session.interrupt()
        first = session.end()
    with start(folder, "cut", 2, "--resume", "cut") as session:
        session.wait_for("the second layout's first rung", lambda lines: in_rung(lines, trial=3, micro_batch=1))
        session.kill()
        second = session.end()
    words = how_to_resume(first)
    with start(folder, "cut", 3, *words, "--gpu-s", "3600") as session:
        third = session.end()
    return Run(path=folder / "studies" / "cut", sessions=(first, second, third))


def in_rung(lines: Sequence[Line], *, trial: int, micro_batch: int) -> bool:
    """Whether the study's `trial`-th trial is in that rung."""
    trials = [line.trial_id for line in lines if isinstance(line, TrialStart)]
    rungs = [(line.trial_id, line.batch.micro_batch) for line in lines if isinstance(line, RungStart)]
    return len(trials) == trial and (trials[-1], micro_batch) in rungs


def how_to_resume(ended: Ended) -> list[str]:
    """The arguments of the command that an interrupted search gives."""
    said = next(line for line in ended.err.splitlines() if line.startswith("Interrupted."))
    return shlex.split(said.partition("python -m platform.search ")[2])


class TestCutShort:
    """One study in three sessions."""

    def test_exit_codes(self, cut: Run) -> None:
        assert [each.code for each in cut.sessions] == [130, -signal.SIGKILL, 0], cut.sessions[2].err

    def test_ctrl_c_says_how_to_go_on_and_ends_the_journal(self, cut: Run) -> None:
        first, _, _ = sessions_of(cut.lines())
        assert isinstance(first[-1], End) and first[-1].exit_code == 130 and first[-1].gpu_s > 0
        assert "go on with: python -m platform.search --resume cut" in cut.sessions[0].err
        assert "Traceback" not in cut.sessions[0].err
        assert "Fastest for tiny" in cut.sessions[0].out, "what was measured is shown"

    def test_the_kill_left_no_last_line(self, cut: Run) -> None:
        _, second, third = sessions_of(cut.lines())
        assert not any(isinstance(line, End) for line in second) and isinstance(third[-1], End)

    def test_what_was_durable_is_kept_and_nothing_is_measured_twice(self, cut: Run) -> None:
        nothing_twice(cut)
        of_search = [each for each in cut.measured if not each.repeat]  # a winner that checkpoints runs its gate after
        assert [(each.batch.micro_batch, each.outcome) for each in of_search] == [
            *((1, Outcome.OK), (2, Outcome.OK)),
            *((1, Outcome.OK), (2, Outcome.OK)),
        ]

    def test_each_session_ran_what_was_missing(self, cut: Run) -> None:
        left = {candidate: [1, 2] for candidate in ("none", "full")}
        for number, lines in enumerate(sessions_of(cut.lines())):
            if number:
                kept, layouts = 4 - sum(map(len, left.values())), sum(map(bool, left.values()))
                said = re.search(r"Kept (\d) .* something is left to run of (\d)", cut.sessions[number].err)
                assert said is not None and (int(said[1]), int(said[2])) == (kept, layouts)
            for line in lines:
                if isinstance(line, TrialStart) and any(left.values()):
                    assert list(line.micro_batches) == left[line.layout.checkpointing]
                elif isinstance(line, Measured) and not line.measurement.repeat:
                    left[line.measurement.layout.checkpointing].remove(line.measurement.batch.micro_batch)
        assert not any(left.values())

    def test_both_cuts_came_in_the_middle_of_a_rung(self, cut: Run) -> None:
        for lines in sessions_of(cut.lines())[:2]:
            rest = [line for line in lines if not isinstance(line, End)]
            assert isinstance(rest[-1], RungStart)

    def test_the_last_session_shows_all_of_it(self, cut: Run) -> None:
        out = cut.sessions[2].out
        assert len(re.findall(r" ok( \*)?$", out, re.MULTILINE)) == 4 and "Fastest for tiny" in out


@pytest.fixture(scope="module")
def hurt(folder: Path) -> Run:
    """One layout's worker is killed once, the next one's is stopped, the third one's is killed twice."""
    space = write_space(
        folder / "hurt.py",
        axes={"engine": ("ddp",), "bucket_mib": (0, 8, 16)},
        micro_batches=(2,),
        hang_floor_s=4.0,
        first_step_s=60.0,
        **SLOW,
    )
    with start(folder, "hurt", 1, str(space), "--name", "hurt", *IN_ORDER) as session:
        kill_in_rung(session, 1)
        session.wait_for("the second layout's rung", lambda lines: num_rungs(lines) == 3)
        worker = session.workers()[-1]
        session.wait_for("timed steps", after_cpu_s(worker, 1.5))
        worker.suspend()
        kill_in_rung(session, 4)
        kill_in_rung(session, 5)
        return Run(path=folder / "studies" / "hurt", sessions=(session.end(),))


def kill_in_rung(session: Session, number: int) -> None:
    """SIGKILL to a worker of the study's rung of that number, as soon as it has begun."""
    session.wait_for(f"rung {number}", lambda lines: num_rungs(lines) == number)
    session.workers()[-1].kill()


def num_rungs(lines: Sequence[Line]) -> int:
    """Rungs begun so far."""
    return sum(isinstance(line, RungStart) for line in lines)


def after_cpu_s(worker: psutil.Process, seconds: float) -> Callable[[Sequence[Line]], bool]:
    """True once the worker computed for so long from now: beyond a rung's first step, which may take minutes."""

    def spent_s() -> float:
        times = worker.cpu_times()
        return times.user + times.system

    before_s = spent_s()
    return lambda lines: spent_s() - before_s > seconds


class TestHurt:
    """Trials that something outside them ends."""

    def test_the_study_goes_on(self, hurt: Run) -> None:
        assert hurt.sessions[0].code == 0, hurt.sessions[0].err
        found = [(each.layout.bucket_mib, each.outcome) for each in hurt.measured]
        assert found == [(0, Outcome.OK), (8, Outcome.HUNG), (16, Outcome.FAILED)]
        nothing_twice(hurt)

    def test_a_layout_whose_worker_was_killed_gets_another_trial(self, hurt: Run) -> None:
        ends = [line for line in hurt.lines() if isinstance(line, TrialEnd)]
        assert [end.state for end in ends] == ["interrupted", "done", "done", "interrupted", "done"]
        assert all(re.search(r"the process of rank [01] died: ", ends[place].reason) for place in (0, 3, 4))
        assert len(hurt.history.finished) == 3

    def test_a_second_death_is_recorded_with_its_rank(self, hurt: Run) -> None:
        assert re.search(r"the process of rank [01] died: .*exit", hurt.measured[2].reason)

    def test_a_stopped_worker_is_recorded_as_a_hang(self, hurt: Run) -> None:
        hung = hurt.measured[1]
        assert hung.layout.bucket_mib == 8 and hung.rank in (0, 1)
        assert f"rank {hung.rank} stood still for" in hung.reason
        (end,) = [line for line in hurt.lines() if isinstance(line, TrialEnd) and line.trial_id == hung.trial_id]
        assert end.reason == hung.reason, "not the death of the process, which the watchdog ended"

    def test_all_of_it_is_shown(self, hurt: Run) -> None:
        err, out = hurt.sessions[0].err, hurt.sessions[0].out
        assert "failed: DDP" in err and "hung: DDP" in err and "Traceback" not in err
        assert "Fastest for tiny" in out and "hung" in out


class TestNothingFits:
    """The built-in space on a machine without a GPU, where it is a miniature, under a cap that no layout can meet."""

    def test_it_says_so_and_what_came_nearest(self, folder: Path) -> None:
        argv = ("bloom7b", "--name", "nothing", "--device-memory-gib", "0.001", "--json")
        with start(folder, "nothing", 1, *argv) as session:
            ended = session.end()
        assert ended.code == 1, ended.err
        plain = "bloom7b cannot be measured here, no node has a GPU: the same search runs on bloom-7b1-miniature"
        assert ended.err.startswith(plain)
        said = ended.object
        assert said["miniature"] is True and said["winner"] is None and said["measurements"] == []
        assert len(said["skipped"]) >= 12 and all("a device has 1 MiB" in each["reason"] for each in said["skipped"])
        assert not (folder / "studies" / "nothing" / "layout.json").exists()


def test_the_miniature_promises_what_the_default_search_must_show() -> None:
    """Layouts of all engines and rungs enough, on any machine with two workers."""
    miniature = search_spaces.load("bloom7b").miniature
    assert miniature is not None and miniature.num_workers == 2
    cluster = Cluster(device_kind="cpu", device="any", device_memory_gib=8.0, devices_per_node=2)
    plan = make_plan(*miniature.candidates(2), cluster, miniature.device_memory_gib)
    assert {candidate.layout.engine for candidate in plan.candidates} == {"ddp", "fsdp", "deepspeed"}
    assert len(plan.candidates) >= 6 and plan.num_rungs >= 12
