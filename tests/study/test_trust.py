"""Studies of other users, and links in a study's folder: what is refused, what is only shown, and what --trust allows.

Other users are real ones: these tests need root, who may become anybody.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import platform.report.__main__ as report  # pyright takes `from platform import` for the standard module
import platform.search.__main__ as search
from platform.search.session.open_study import opened
from platform.search.setup.options import StudyOptions
from platform.study.group import StudyGroup, write_group
from platform.study.study import Study
from tests import needs
from tests.samples import header, measurement
from tests.whole_searches.session import write_space
from trainers.records.journal import Measured
from trainers.records.journal_lines import record
from trainers.records.measurement import Outcome
from trainers.spec.codec import to_json

ROOT = Path(__file__).parents[2]
NOBODY = 65534
as_root = pytest.mark.usefixtures("root")

AS_NOBODY = f"""
import conftest, os, pathlib, sys
import platform.report.__main__ as report
from platform.study.lock import is_locked
studies = pathlib.Path(sys.argv[1])
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
print("held" if is_locked(studies / "one") else "free", flush=True)
sys.exit(report.main(["one", "--studies", str(studies), "--no-mlflow"]))
"""


@pytest.fixture
def studies() -> Iterator[Path]:
    """Yields a folder of studies that every user may read; pytest's cannot be entered by others."""
    folder = Path(tempfile.mkdtemp(prefix="studies-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def _study(studies: Path, name: str = "one", space: str = "bloom7b") -> Path:
    """Returns a study of one measurement."""
    stored = to_json(StudyOptions(space=space))
    with Study.create(studies, name) as study:
        study.record(header(name, options=stored))
        study.record(Measured(measurement=measurement()))
        return study.path


def _give_away(*paths: Path) -> None:
    for path in paths:
        os.chown(path, NOBODY, NOBODY)


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def root() -> None:
    needs.root("acting as another user")


@as_root
def test_a_reader_who_may_not_write_sees_that_a_study_is_running(studies: Path) -> None:
    command = [sys.executable, "-c", AS_NOBODY, str(studies)]
    (_study(studies) / "journal.jsonl").chmod(0o644)  # as its user lets others read it
    with Study.resume(studies, "one")[0]:
        running = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert running.stdout.startswith("held\n") and "The study is running" in running.stderr
    assert "killed" not in running.stdout + running.stderr
    assert completed.stdout.startswith("free\n") and "its driver was killed" in completed.stdout
    assert "40,000" in running.stdout and "40,000" in completed.stdout


@as_root
@pytest.mark.parametrize("owned", ["folder", "journal"])
def test_a_study_of_another_user_is_resumed_only_with_trust(
    studies: Path, capsys: pytest.CaptureFixture[str], owned: str
) -> None:
    folder = _study(studies)
    before = _files(folder)
    _give_away(folder if owned == "folder" else folder / "journal.jsonl")
    argv = ["--resume", "one", "--studies", str(studies), "--dry-run"]
    assert search.main(argv) == 2
    output = capsys.readouterr().err
    assert "belongs to user nobody" in output and "then give --trust" in output and len(output.splitlines()) == 1
    assert _files(folder) == before
    with opened(search.parse([*argv, "--trust"])) as opening:
        assert opening.is_resumed


@as_root
def test_a_space_file_of_another_user_is_run_only_with_trust(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = write_space(studies / "mine.py", axes={"engine": ("ddp",)})
    space.write_text(f"{space.read_text()}\nopen({str(studies / 'ran')!r}, 'w').close()\n")
    _study(studies, space=str(space))
    _give_away(space)
    argv = ["--resume", "one", "--studies", str(studies)]
    assert search.main(argv) == 2
    assert f"{space} belongs to user nobody" in capsys.readouterr().err
    assert not (studies / "ran").exists()
    with opened(search.parse([*argv, "--trust"])):
        assert (studies / "ran").exists()


@as_root
def test_several_studies_of_another_user_are_resumed_only_with_trust(
    studies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_group(studies / "s", StudyGroup(counts=(1, 2), options=to_json(StudyOptions(space="bloom7b", gpus=(1, 2)))))
    _study(studies, "s-1gpu")
    _give_away(studies / "s")
    assert search.main(["--resume", "s", "--studies", str(studies)]) == 2
    assert "belongs to user nobody" in capsys.readouterr().err
    assert report.main(["s", "--studies", str(studies)]) == 0
    output = capsys.readouterr()
    assert "neither files nor MLflow are written without --trust" in output.err and "40,000" in output.out
    assert _files(studies / "s") == {"scaling.json"}
    assert report.main(["s", "--studies", str(studies), "--trust"]) == 0
    assert _files(studies / "s") > {"scaling.json", "scaling.csv"}


@as_root
def test_a_report_on_a_study_of_another_user_writes_nothing_without_trust(
    studies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _study(studies)
    before = _files(folder)
    _give_away(folder, folder / "journal.jsonl")
    assert report.main(["one", "--studies", str(studies)]) == 0
    output = capsys.readouterr()
    assert "The study belongs to user nobody" in output.err and "40,000" in output.out
    assert f"go on with: python -m platform.search --resume one --studies {studies} --trust\n" in output.out
    assert _files(folder) == before
    assert report.main(["one", "--studies", str(studies), "--trust", "--no-mlflow"]) == 0
    assert "layout.json" in _files(folder)


@pytest.mark.parametrize("name", ["layout.json", "lock", "journal.rejected.jsonl", "measurements.csv", "running.json"])
def test_a_link_in_a_study_s_folder_is_followed_by_no_command(
    studies: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    private = studies / "private"
    private.write_text("mine\n")
    folder = _study(studies)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(private)
    for argv in (["--resume", "one"], ["bloom7b", "--learn-from", "one"]):
        assert search.main([*argv, "--studies", str(studies), "--address", "local"]) == 2
        output = capsys.readouterr().err
        assert f"error: {folder / name} is a link" in output and len(output.splitlines()) == 1
    assert report.main(["one", "--studies", str(studies), "--no-mlflow"]) == 0
    output = capsys.readouterr()
    assert "is a link" in output.err and "shown without files" in output.err and "40,000" in output.out
    assert private.read_text() == "mine\n" and "layout.json" not in _files(folder) - {name}


def test_a_journal_that_is_a_link_is_refused_in_a_sentence(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = _study(studies) / "journal.jsonl"
    moved = journal.rename(studies / "elsewhere.jsonl")
    journal.symlink_to(moved)
    assert report.main(["one", "--studies", str(studies), "--no-mlflow"]) == 2
    assert "is a link" in capsys.readouterr().err


def test_the_file_of_several_studies_is_not_read_through_a_link(
    studies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (studies / "s").mkdir()
    secret = studies / "secret.json"
    secret.write_text(json.dumps({"counts": [1], "options": {"space": "bloom7b"}}))
    (studies / "s" / "scaling.json").symlink_to(secret)
    for main, argv in ((report.main, ["s"]), (search.main, ["--resume", "s"])):
        assert main([*argv, "--studies", str(studies)]) == 2
        assert "is a link" in capsys.readouterr().err


def test_control_characters_of_a_journal_reach_no_terminal(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks some, such as one that names the window or clears it: a journal may be somebody else's."""
    bad = "\x1b]0;owned\x07\x1b[2J\x9b2J\r"
    folder = studies / "one"
    folder.mkdir()
    recipe = measurement().recipe
    recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, name=f"m{bad}"))
    points = [measurement(recipe=recipe), measurement(recipe=recipe, micro_batch=2, tokens_per_s=None,
                                                      outcome=Outcome.FAILED, reason=f"why{bad}")]  # fmt: skip
    record(folder / "journal.jsonl", header("one", recipes=(recipe,), space=f"s{bad}"))
    for point in points:
        record(folder / "journal.jsonl", Measured(measurement=point))
    assert report.main(["one", "--studies", str(studies), "--no-mlflow"]) == 0
    output = capsys.readouterr()
    assert not set("\x1b\x07\x9b\r") & set(output.out + output.err) and "\\x1b]0;owned" in output.out


def test_a_model_s_name_may_have_dollars(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks names that matplotlib would read as TeX."""
    folder = studies / "one"
    folder.mkdir()
    recipe = measurement().recipe
    recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, name="m$x^{$"))
    record(folder / "journal.jsonl", header("one", recipes=(recipe,)))
    record(folder / "journal.jsonl", Measured(measurement=measurement(recipe=recipe)))
    page = folder / "page.html"
    assert report.main(["one", "--studies", str(studies), "--no-mlflow", "--html", str(page)]) == 0
    assert page.exists() and (folder / "layout.json").exists() and list(folder.glob("*.png"))
    capsys.readouterr()


def test_a_received_space_file_is_not_run(
    studies: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks one that came by tar, scp or git: it is this user's own: its owner says nothing of who wrote it."""
    monkeypatch.chdir(studies)
    folder = studies / "one"
    folder.mkdir()
    path = folder / "space.py"
    path.write_text("open('PWNED', 'w')\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for space, stated, sentence in (
        ("one/space.py", digest, "names the space file one/space.py by a relative path, as no search does"),
        (str(path), "0" * 64, f"the space file {path} is not the one that the study began with"),
    ):
        (folder / "journal.jsonl").unlink(missing_ok=True)
        record(folder / "journal.jsonl", header("one", options=to_json(StudyOptions(space=space)), space_sha256=stated))
        assert search.main(["--resume", "one", "--studies", str(studies), "--address", "127.0.0.1:1"]) == 2
        assert sentence in capsys.readouterr().err and not (studies / "PWNED").exists()
    assert search.main(["--resume", "one", "--studies", str(studies), "--address", "127.0.0.1:1", "--trust"]) == 2
    assert (studies / "PWNED").exists()
