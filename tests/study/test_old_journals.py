"""A real journal of schema 1: reported, resumed, and of both schemas from then on. Made by commit 7d77e5d on two cores:

    python -m platform.search bloom7b --set engine=ddp,fsdp --set checkpointing=none --name old-1 --max-trials 1 \
        --repeats 1 --price-per-gpu-h 2.5 --address local
    python -m platform.search --resume old-1 --max-trials 1 --profile --address local    # and Ctrl-C
"""

import json
import shutil
from pathlib import Path

import pytest

import platform.report.__main__ as report  # pyright takes `from platform import` for the standard module
import platform.search.__main__ as search
import platform.searchers as searchers
from platform.cluster.nodes import ClusterHandle
from platform.search.loop.budget import Budget
from platform.search.loop.jobs import TrialSettings
from platform.search.loop.loop import SearchLoop
from platform.search.session import session
from platform.search.session.open_study import opened
from platform.search.setup.options import StudyOptions
from platform.search.setup.study_setup import setup_of
from platform.study.history import History
from platform.study.study import read
from tests.search.loop.backend import Backend, Clock, result
from trainers.records.journal import End, Resume
from trainers.records.journal_lines import SCHEMA, sealed

DATA = Path(__file__).with_name("data") / "schema-1.jsonl"
STUDY_ID = "f0c565046eec"
"""Id by which MLflow knows the study, from commit 7d77e5d."""


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    """Returns a folder with the study."""
    (tmp_path / "old-1").mkdir()
    shutil.copy(DATA, tmp_path / "old-1" / "journal.jsonl")
    return tmp_path


def _resume(studies: Path) -> None:
    """Runs a session of one trial, which is played: a final run, since everything was tried before."""
    with opened(search.parse(["--resume", "old-1", "--studies", str(studies)])) as opening:
        study, header = opening.study, opening.history.header
        assert study is not None and header is not None
        assert opening.options.study == StudyOptions(
            space="bloom7b", set=("engine=ddp,fsdp", "checkpointing=none"), repeats=1, price_per_gpu_h=2.5
        )
        setup = setup_of(
            opening.request, ClusterHandle(cluster=header.cluster, cpus_per_worker=1.0, driver_ip=""), None
        )
        study.record(Resume(study=header, commit="0123456"))
        loop = SearchLoop(
            study=study,
            candidates=setup.plan.candidates,
            searcher=searchers.create(opening.request.searcher, setup.problem),
            budget=Budget(),
            settings=TrialSettings(
                cluster=setup.cluster,
                cpus_per_worker=1.0,
                recorder="none",
                commit="0123456",
                cap_gib=setup.cap_gib,
                timing=setup.timing,
                rules=setup.rules,
            ),
        )
        assert Backend(study, Clock(), result).step(loop) is not None
        study.record(End(exit_code=0, wall_s=1.0, gpu_s=2.0))


def _report(studies: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    assert report.main(["old-1", "--studies", str(studies), "--no-mlflow", "--json"]) in (0, 4)
    return json.loads(capsys.readouterr().out)


def _read(studies: Path) -> History:
    history, remarks = read(studies / "old-1", last=True)
    assert remarks == []
    return history


def test_it_is_reported_as_before(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = _read(studies)
    assert history.header is not None and history.header.id == STUDY_ID
    assert (history.sessions, len(history.measurements)) == (2, 9) and history.end and history.end.exit_code == 130
    printed = _report(studies, capsys)
    assert printed["study"] == "old-1" and printed["miniature"] is True and printed["price_per_gpu_h"] == 2.5


def test_a_dry_run_of_it_says_what_is_left(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = _read(studies).header
    assert header is not None
    handle = ClusterHandle(cluster=header.cluster, cpus_per_worker=1.0, driver_ip="")
    options = search.parse(["--resume", "old-1", "--studies", str(studies), "--dry-run"])
    assert session.search(options, handle=handle) == 0
    assert "0 trials with up to 0 rungs" in capsys.readouterr().out


def test_it_goes_on_in_the_present_schema_and_survives_a_damaged_first_line(
    studies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = studies / "old-1" / "journal.jsonl"
    before, printed = journal.read_bytes(), _report(studies, capsys)
    _resume(studies)
    lines = journal.read_bytes().splitlines()
    assert journal.read_bytes().startswith(before)
    assert {json.loads(line)["schema"] for line in lines[len(before.splitlines()) :]} == {SCHEMA}
    undamaged = _read(studies)

    journal.write_bytes(b"\n".join([lines[0][:100], *lines[1:]]) + b"\n")
    history, (remark,) = read(studies / "old-1", last=True)
    assert (
        "Line 1 of" in remark and history.header == undamaged.header and history.measurements == undamaged.measurements
    )
    assert history.header is not None and history.header.id == STUDY_ID
    assert history.sessions == undamaged.sessions == 3
    damaged = _report(studies, capsys)
    assert damaged["study"] == printed["study"]
    _resume(studies)
    assert len(read(studies / "old-1", last=True)[0].trials) > len(undamaged.trials)


def test_lines_of_a_newer_version_are_left_out_of_a_report_and_refuse_a_resumption(
    studies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = studies / "old-1" / "journal.jsonl"
    newer = {"kind": "resume", "schema": SCHEMA + 1, "at": "2027-01-01T00:00:00+00:00", "commit": "feedface", "mood": 1}
    with journal.open("a") as file:
        file.write(sealed(json.dumps(newer)) + "\n")
    assert report.main(["old-1", "--studies", str(studies), "--no-mlflow", "--json"]) in (0, 4)
    output = capsys.readouterr()
    assert json.loads(output.out)["study"] == "old-1"
    sentence = f"(journal schema {SCHEMA + 1}, this one reads up to {SCHEMA}): the checkout of commit feedface reads it"
    assert f"{sentence}; the rest is used." in output.err
    before = journal.read_bytes()

    assert search.main(["--resume", "old-1", "--studies", str(studies)]) == 2
    assert f"{sentence}; platform.report shows the rest" in capsys.readouterr().err
    assert journal.read_bytes() == before
