"""Studies that have or do not have anything left to run, from the journal alone. `test_search.py` resumes a real study
so.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.cluster.nodes import ClusterHandle
from platform.cluster.probing import probe_store
from platform.common.errors import NOT_RESOLVED
from platform.report.endings import verdict
from platform.search.__main__ import parse
from platform.search.loop.budget import Budget
from platform.search.loop.jobs import TrialSettings
from platform.search.loop.loop import SearchLoop
from platform.search.session.finished import finished_reason
from platform.search.setup.request import SearchRequest, read_request
from platform.search.setup.study_setup import setup_of
from platform.study.result.result import StudyResult
from platform.study.study import Study
from tests.samples import header
from tests.search.loop.backend import CLUSTER, Backend, Clock, Play, fast, result
from tests.whole_searches.session import write_space
from trainers.records.job import Job
from trainers.records.journal import End, Resume
from trainers.records.measurement import Measurement
from trainers.spec.batch import BatchPoint

PLACE = ClusterHandle(cluster=CLUSTER, cpus_per_worker=1.0, driver_ip="127.0.0.1")


def _request(space: Path, *argv: str) -> SearchRequest:
    return read_request(parse([str(space), *argv]))


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """Returns a space file of two layouts."""
    return write_space(tmp_path / "pair.py", axes={"checkpointing": ("none", "full"), "engine": ("ddp",)})


def _session(
    study: Study,
    request: SearchRequest,
    max_trials: int | None = None,
    losses: Callable[[Job], tuple[float, ...]] = lambda job: (2.0, 1.0),
    play: Play = fast,
) -> None:
    """Runs one session of the study, to its last line; its gates have these `losses`, its rungs the results of
    `play`.
    """
    setup = setup_of(request, PLACE, None)
    if study.follow()[1].header is None:
        study.record(header(study.name, recipes=setup.recipes, cluster=setup.cluster))
    else:
        study.record(Resume())
    loop = SearchLoop(
        study=study,
        candidates=setup.plan.candidates,
        searcher=searchers.create(request.searcher, setup.problem),
        budget=Budget(max_trials=max_trials),
        settings=TrialSettings(
            cluster=setup.cluster, cpus_per_worker=1.0, recorder="none", commit="0123456", cap_gib=setup.cap_gib,
            timing=setup.timing, rules=setup.rules,
        ),
    )  # fmt: skip
    backend = Backend(study, Clock(), play)
    backend.losses = losses
    backend.run(loop)
    code, _ = verdict(StudyResult.of(study.follow()[1]))
    study.record(End(exit_code=code, wall_s=1.0, gpu_s=2.0, left_out=loop.left_out, tried_all=loop.tried_all))


@pytest.mark.parametrize("searcher", ["guided", "sweep", "optuna"])
def test_a_study_that_came_to_its_end_is_over_and_nothing_is_written(
    tmp_path: Path, space: Path, searcher: str
) -> None:
    request = _request(space, "--searcher", searcher)
    with Study.create(tmp_path / "studies", "made-up") as study:
        _session(study, request)
        before = study.journal.read_bytes()
        assert finished_reason(study, request).startswith(f"on {CLUSTER.label}: every layout of the space was tried")
        assert study.journal.read_bytes() == before


def test_it_is_not_where_a_session_would_run_something(tmp_path: Path, space: Path) -> None:
    request = _request(space, "--searcher", "sweep")
    with Study.create(tmp_path / "studies", "made-up") as study:
        assert finished_reason(study, request) == "", "it has not begun"
        _session(study, request, max_trials=1)
        assert finished_reason(study, request) == "", "a budget ended it"
        _session(study, request)
        assert finished_reason(study, request)
        assert finished_reason(study, _request(space, "--searcher", "sweep", "--profile")) == "", (
            "no winner is profiled"
        )
        write_space(space, axes={"checkpointing": ("none", "full", "selective"), "engine": ("ddp",)})
        assert finished_reason(study, _request(space, "--searcher", "sweep")) == "", "the space has grown"


def test_a_point_that_its_gate_bars_is_left_to_be_recorded_and_asking_writes_nothing(
    tmp_path: Path, space: Path
) -> None:
    """Checks a session that was cut between the gate's curves and the verdict on them."""
    request = _request(space, "--searcher", "sweep")
    with Study.create(tmp_path / "studies", "made-up") as study:
        _session(study, request, losses=lambda job: (2.0, 1.0) if job.is_winner_run else (2.0, 3.0))
        lines = study.journal.read_bytes().splitlines(keepends=True)
        uncut = [line for line in lines if b'"phase":"gate"' not in line]
        assert len(uncut) < len(lines)
        study.journal.write_bytes(b"".join(uncut))
    study, *_ = Study.resume(tmp_path / "studies", "made-up")
    with study:
        assert finished_reason(study, request) == ""
        assert study.journal.read_bytes() == b"".join(uncut)


def test_it_is_not_where_contenders_are_not_resolved(tmp_path: Path, space: Path) -> None:
    request = _request(space, "--searcher", "sweep")

    def disturbed(job: Job, batch: BatchPoint) -> Measurement:
        """Returns a measurement in which, in each run, another of two layouts is slowed down, the leader first."""
        is_leader = job.layout.checkpointing == "none"
        is_slowed = job.repeat and (job.repeat + is_leader) % 2 == 0
        speed = (1000.0 + is_leader) * batch.micro_batch * (0.4 if is_slowed else 1.0)
        return result(job, batch, speed, step_time_derived=not job.repeat)

    with Study.create(tmp_path / "studies", "made-up") as study:
        _session(study, request, play=disturbed)
        end = study.follow()[1].end
        assert end is not None and (end.exit_code, end.tried_all) == (NOT_RESOLVED, True)
        assert finished_reason(study, request) == ""


def test_it_is_not_told_where_a_probe_may_change_what_is_tried(tmp_path: Path, space: Path) -> None:
    request = _request(space, "--searcher", "sweep")
    with Study.create(tmp_path / "studies", "made-up") as study:
        _session(study, request)
        (tmp_path / "studies" / probe_store.FOLDER).mkdir()
        assert finished_reason(study, request) == ""


def test_a_space_named_by_its_folder_is_found_again_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (Path("mine"), Path("gpt2")):
        folder.mkdir()
        (folder / "config.json").write_text(
            '{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 512, "n_positions": 128}'
        )
    assert _request(Path("mine")).options.space == str(tmp_path / "mine")
    assert _request(Path("gpt2")).options.space == "gpt2", "the built-in one comes first"
