"""One search in which nearly every trial has another real fault: the messages, records and leftovers."""

import contextlib
import dataclasses
import datetime
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from search_spaces import load
from search_spaces.candidate import Candidate
from tests import needs
from tests.faults import leaks
from tests.faults.memory_group import MemoryGroup
from tests.whole_searches.session import Session
from tests.whole_searches.studies import (
    ANSWERED,
    IN_ORDER,
    RAN,
    WITHOUT_MLFLOW,
    Run,
    after_cpu_s,
    nothing_twice,
    shows_a_result,
    start,
)
from trainers.records.journal import End, Line, Measured, RungStart, TrialEnd, TrialStart
from trainers.records.measurement import Measurement, Outcome

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]

WORKER, TUNE = "RayTrainWorker", "ImplicitFunc"
"""Names that Ray gives the processes that train and the process in which Tune runs the trial."""
SPACE = Path(__file__).with_name("space.py")
QUICK = ("hang", "no import", "killed after a rung", "and the next", "memory of a rank", "and no more")
HEAVY = ("dies twice", "memory of the host", "memory of Tune's process", "compile that never ends", "loss", "well")
"""The points of `space.py` that each of the two studies runs."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DisturbedRun(Run):
    """The study, with what its trials held and left."""

    accounts: leaks.Accounts
    victims: Mapping[str, str]
    """The process that the kernel killed for want of memory, by the name of the layout; none without a control
    group.
    """

    def of(self, name: str) -> list[Measurement]:
        """Returns the journal's measurements of the layout with that name in the space."""
        measurements = [
            measurement for measurement in self.measured if _name(measurement.recipe.id, measurement.layout.id) == name
        ]
        return [measurement for measurement in measurements if not measurement.repeat]

    def ends(self, name: str) -> list[TrialEnd]:
        """Returns the ends of the search's trials of that layout, without the winner's last run."""
        trials = [trial for trial in self.history.trials if trial.micro_batches and not trial.repeat]
        trial_ids = {trial.trial_id for trial in trials if _name(trial.recipe.id, trial.layout.id) == name}
        return [line for line in self.lines() if isinstance(line, TrialEnd) and line.trial_id in trial_ids]


def _candidates() -> dict[tuple[str, str], Candidate]:
    return {(candidate.recipe.id, candidate.layout.id): candidate for candidate in load(str(SPACE)).candidates(2)[0]}


def _name(recipe_id: str, layout_id: str) -> str:
    return _candidates()[recipe_id, layout_id].name.split(", ")[0]


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> DisturbedRun:
    """Runs a study of workers that stop, die or cannot start, to its end."""
    return _study(tmp_path_factory.mktemp("hurt"), QUICK, None)


@pytest.fixture(scope="module")
def starved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DisturbedRun]:
    """Runs a study of trials that lack memory, a compiler that answers, or sense, to its end."""
    with MemoryGroup(f"layout-search-test-{os.getpid()}") as group:
        yield _study(tmp_path_factory.mktemp("hurt"), HEAVY, group)


def _study(folder: Path, points: Sequence[str], group: MemoryGroup | None) -> DisturbedRun:
    environment = {
        **_never_compiles(folder / "compiler"),
        **_cannot_import(folder / "packages", "deepspeed"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        **WITHOUT_MLFLOW,
        "RAY_AUTH_MODE": "disabled",  # so that this process may ask the search's Ray for its placement groups
    }
    # By itself a CPU's rung times a second, five steps in all: it would be over before anything is done to it where
    # steps are fast, or wait for each other more than they compute. And a slow machine's memory runs out late.
    steps = 10 if group is None else 20
    argv = (str(SPACE), "--name", "hurt", *IN_ORDER, "--set", f"point={','.join(points)}", f"--steps={steps}")
    before = (lambda: None) if group is None else group.join
    with (
        start(folder, "hurt", 1, *argv, environment=environment, before=before) as session,
        leaks.of(session, leaks.groups_of(session)) as accounts,
    ):
        victims = _disturb(session, points, group)
        session_end = session.end()
    return DisturbedRun(path=folder / "studies" / "hurt", sessions=(session_end,), accounts=accounts, victims=victims)


def _never_compiles(folder: Path) -> dict[str, str]:
    """Returns the environment of a C++ compiler that waits for ever."""
    folder.mkdir()
    compiler = folder / "c++"
    compiler.write_text("#!/bin/sh\nsleep 3600\n")
    compiler.chmod(0o755)
    return {"CXX": str(compiler)}


def _cannot_import(folder: Path, package: str) -> dict[str, str]:
    """Returns the environment of an installed package that lacks a library of the system."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text("import ctypes\n\nctypes.CDLL('libnot-here.so.1')\n")
    return {"PYTHONPATH": str(folder)}


def _disturb(session: Session, points: Sequence[str], group: MemoryGroup | None) -> dict[str, str]:
    """Follows the journal and injects into each layout the fault of its name, once; returns, by layout, the process
    that the kernel killed.
    """
    victims: dict[str, str] = {}

    def in_a_step(disturb: Callable[[psutil.Process], object]) -> Callable[[psutil.Process], object]:
        def at_once(worker: psutil.Process) -> None:
            session.wait_for("timed steps", after_cpu_s(worker, 1.0))
            disturb(worker)

        return at_once

    to_come: list[tuple[str, type[Line], Callable[[psutil.Process], object]]] = [
        ("hang", RungStart, in_a_step(psutil.Process.suspend)),
        ("dies twice", RungStart, in_a_step(psutil.Process.kill)),
        ("dies twice", RungStart, in_a_step(psutil.Process.kill)),
        ("killed after a rung", Measured, psutil.Process.kill),
        ("memory of a rank", RungStart, lambda worker: _leave_no_more(session, worker)),
    ]
    if group is not None and group.exists:

        def run_out(name: str) -> None:
            victims[name] = group.run_out(session.family())

        def offer_tune(_: psutil.Process) -> None:
            """Makes the kernel kill Tune's process first: Ray gives all processes that it starts the same
            `oom_score_adj`.
            """
            (process,) = session.workers([TUNE])
            before: dict[Path, str] = {}
            for family_member in session.family():
                offer = Path(f"/proc/{family_member.pid}/oom_score_adj")
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that ends just now
                    before[offer] = offer.read_text()
                    offer.write_text("1000" if family_member == process else "0")
            run_out("memory of Tune's process")
            for offer, score in before.items():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    offer.write_text(score)

        to_come.append(("memory of the host", RungStart, in_a_step(lambda _: run_out("memory of the host"))))
        to_come.append(("memory of Tune's process", RungStart, in_a_step(offer_tune)))
    to_come = [event for event in to_come if event[0] in points]
    names: dict[str, str] = {}
    read_lines: list[Line] = []
    while to_come:
        for line in session.wait_for("the next line", lambda lines: lines[len(read_lines) :]):
            read_lines.append(line)
            if isinstance(line, TrialStart):
                names[line.trial_id] = _name(line.recipe.id, line.layout.id)
            trial_id = line.measurement.trial_id if isinstance(line, Measured) else getattr(line, "trial_id", "")
            for event in to_come:
                name, kind, disturbance = event
                if name == names.get(trial_id) and isinstance(line, kind):
                    to_come.remove(event)
                    disturbance(session.workers()[-1])
                    break
    return victims


def _leave_no_more(session: Session, worker: psutil.Process) -> None:
    """Limits the memory of this rank, once the rung that begins is over, to what that rung took and 64 MiB: the next
    rung takes 300 MiB more.

    The threads of the rank need far less than 64 MiB besides.
    """
    peak_kib = 0

    def is_over(lines: Sequence[Line]) -> bool:
        nonlocal peak_kib
        rungs = [line for line in lines if isinstance(line, RungStart)]
        if any(isinstance(line, Measured) and line.measurement.trial_id == rungs[-1].trial_id for line in lines):
            return True
        matched = re.search(r"^VmData:\s+(\d+) kB", Path(f"/proc/{worker.pid}/status").read_text(), re.MULTILINE)
        assert matched is not None
        peak_kib = max(peak_kib, int(matched[1]))
        return False

    session.wait_for("the rung's end", is_over)
    worker.rlimit(psutil.RLIMIT_DATA, (peak_kib * 1024 + 64 * 2**20, -1))


class TestTheStudy:
    """Properties of the study that hold whatever happened."""

    def test_it_goes_on_to_its_end(self, disturbed: DisturbedRun) -> None:
        (session_end,) = disturbed.sessions
        assert session_end.code in ANSWERED, session_end.err
        last = disturbed.lines()[-1]
        assert isinstance(last, End) and last.exit_code == session_end.code
        assert "Traceback" not in session_end.err
        assert shows_a_result(session_end.out)

    def test_every_layout_has_its_verdict_and_nothing_was_measured_twice(self, disturbed: DisturbedRun) -> None:
        assert {_name(measurement.recipe.id, measurement.layout.id) for measurement in disturbed.measured} == {
            "hang",
            "no import",
            "killed after a rung",
            "memory of a rank",
        }
        nothing_twice(disturbed)

    def test_mlflow_s_absence_is_said_at_its_end(self, disturbed: DisturbedRun) -> None:
        count = len(disturbed.measured)
        output = "MLflow at http://127.0.0.1:1 was not reached, so"
        output += f" how much it lacks of {count} measurements is not known (connection refused)"
        assert output in disturbed.sessions[0].err

    def test_nothing_of_any_trial_is_left(self, disturbed: DisturbedRun) -> None:
        assert disturbed.accounts.leaked == []
        kinds = [{resource.kind for resource in held} for held in disturbed.accounts.held.values()]
        assert len(kinds) >= 4 and all("process" in kind for kind in kinds)
        assert all("placement group" in kind for kind in kinds)


class TestKilled:
    """A worker that gets SIGKILL: its layout has one more trial."""

    def test_just_after_a_rung(self, disturbed: DisturbedRun) -> None:
        """Checks that what was measured before is kept and not run again."""
        first, second = disturbed.ends("killed after a rung")
        assert (first.state, second.state) == ("interrupted", "done")
        measurements = disturbed.of("killed after a rung")
        assert [(measurement.batch.micro_batch, measurement.trial_id) for measurement in measurements] == [
            (1, first.trial_id),
            (2, second.trial_id),
        ]
        assert all(measurement.outcome in RAN for measurement in measurements)
        (again,) = [trial for trial in disturbed.history.trials if trial.trial_id == second.trial_id]
        assert again.micro_batches == (2,)

    def test_its_node_is_told(self, disturbed: DisturbedRun) -> None:
        first, _ = disturbed.ends("killed after a rung")
        assert first.fault == "died" and re.fullmatch(r"\d+\.\d+\.\d+\.\d+", first.node)

    def test_twice_in_a_step(self, starved: DisturbedRun) -> None:
        (failed,) = starved.of("dies twice")
        assert failed.outcome is Outcome.FAILED and re.search(r"the process of rank [01] died: .*exit", failed.reason)
        ends = starved.ends("dies twice")
        assert [(end.state, end.fault) for end in ends] == [("interrupted", "died")] * 2
        assert len({end.node for end in ends}) == 1
        assert "failed: DDP" in starved.sessions[0].err


class TestOutOfMemory:
    """One rank of several: the others wait for it in vain, and not for long."""

    def test_its_rank_is_named_and_what_fitted_is_kept(self, disturbed: DisturbedRun) -> None:
        fitted, too_large = disturbed.of("memory of a rank")
        assert fitted.outcome in RAN and fitted.batch.micro_batch == 2
        assert too_large.outcome is Outcome.OOM and too_large.rank in (0, 1), too_large.reason
        assert f"rank {too_large.rank} asked for" in too_large.reason and "at micro-batch 6" in too_large.reason
        assert "oom: DDP" in disturbed.sessions[0].err and too_large.reason in disturbed.sessions[0].err

    def test_its_trial_ends_before_the_others_deadline(self, disturbed: DisturbedRun) -> None:
        (end,) = disturbed.ends("memory of a rank")
        assert (end.state, end.fault) == ("done", "")
        begun = [line for line in disturbed.lines() if isinstance(line, RungStart) and line.trial_id == end.trial_id]
        took = datetime.datetime.fromisoformat(end.at) - datetime.datetime.fromisoformat(begun[-1].at)
        assert took.total_seconds() < load(str(SPACE)).first_step_s


class TestHung:
    """Trials that stand still."""

    def test_a_stopped_rank(self, disturbed: DisturbedRun) -> None:
        (hung,) = disturbed.of("hang")
        assert hung.outcome is Outcome.HUNG and f"rank {hung.rank} made no progress for" in hung.reason
        (end,) = disturbed.ends("hang")
        assert (end.state, end.fault) == ("done", "hung")
        assert end.reason == hung.reason, "not the death of the process, which the watchdog ended"
        assert "hung: DDP" in disturbed.sessions[0].err and "hung" in disturbed.sessions[0].out


class TestStarved:
    """Memory that runs out for one, a compiler that never answers, a recipe without sense."""

    def test_the_study_goes_on_and_leaves_nothing(self, starved: DisturbedRun) -> None:
        assert starved.sessions[0].code in ANSWERED, starved.sessions[0].err
        assert starved.accounts.leaked == []
        nothing_twice(starved)

    @pytest.mark.parametrize("name, victim", [("memory of the host", WORKER), ("memory of Tune's process", TUNE)])
    def test_of_the_host(self, starved: DisturbedRun, name: str, victim: str) -> None:
        if not starved.victims:
            needs.refused("control groups of memory", "no group could be made")
        assert victim in starved.victims[name], f"the kernel took {starved.victims[name]}"
        (measured,) = starved.of(name)
        assert measured.outcome is Outcome.OOM, measured.reason
        assert "was killed because host memory ran out" in measured.reason
        assert len(starved.ends(name)) == 1, "it does not run again"

    def test_a_compile_that_never_ends(self, starved: DisturbedRun) -> None:
        (hung,) = starved.of("compile that never ends")
        assert hung.outcome is Outcome.HUNG and hung.layout.compile == "block"
        assert re.search(r"made no progress for 9\d s at micro-step 0 of step 0", hung.reason)

    def test_a_loss_that_is_no_number(self, starved: DisturbedRun) -> None:
        (measured,) = starved.of("loss")
        assert measured.outcome is Outcome.DIVERGED and "the loss was nan at step" in measured.reason
        assert len(starved.ends("loss")) == 1


class TestItsOwnFault:
    """Failures for which a layout or its environment is itself to blame: they are recorded, and the layout is not tried
    again.
    """

    def test_a_worker_that_cannot_import(self, disturbed: DisturbedRun) -> None:
        (measured,) = disturbed.of("no import")
        assert measured.outcome is Outcome.FAILED and "libnot-here.so.1" in measured.reason
        (end,) = disturbed.ends("no import")
        assert (end.state, end.fault) == ("done", "failed")
        assert "failed: ZeRO-0" in disturbed.sessions[0].err and "libnot-here.so.1" in disturbed.sessions[0].err
