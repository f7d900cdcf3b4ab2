"""Every command that opens the folder of a study, training or comparison asks first whose it is and where it leads.

Other users are real ones: half of these tests need root, who may give files away.
"""

import dataclasses
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import platform.report.__main__ as report  # pyright takes `from platform import` for the standard module
import platform.search.__main__ as search
import platform.search.rechecking.command as recheck
import platform.train.__main__ as train
import platform.train.converging.command as converge
import platform.train.exporting.command as export
from platform.search.setup.options import StudyOptions
from platform.study.group import SCALING, StudyGroup, write_group
from platform.study.journal import JOURNAL
from platform.study.study import Study
from tests import needs
from tests.samples import RECIPE, header, measurement
from tests.training.values import plan
from trainers.records.journal import Measured
from trainers.records.training_files import PLAN
from trainers.spec import engines
from trainers.spec.codec import to_json
from trainers.spec.layout import Layout
from trainers.training import torchrun

ROOT = Path(__file__).parents[2]
NOBODY = 65534
Main = Callable[[list[str]], int]
COMMANDS: dict[str, str] = {
    "platform.converge": "a study's winner, and the comparison's folder",
    "platform.export": "a training, or a study's winner",
    "platform.plan.__main__": "a study of --learn-from, of which it only shows what it makes of the figures",
    "platform.prepare": "",
    "platform.probe": "",
    "platform.recheck": "the study whose points run again",
    "platform.replay": "",
    "platform.report.__main__": "shows any study; writes files and MLflow behind the gate",
    "platform.search.__main__": "a study to resume, its copy, one to learn from",
    "platform.train.__main__": "a study's winner, and the training's folder",
    "platform.validate.__main__": "",
}
"""The folders that each command opens; "" for none. What opens one is a case of `OPENING`."""
NOWHERE = ["--address", "127.0.0.1:1"]
"""An address at which no Ray answers: a mistake of the user's, found behind the gate."""
OPENING: dict[str, tuple[Main, str, list[str]]] = {
    "resume": (search.main, "one", ["--resume", "one", *NOWHERE]),
    "resume several": (search.main, "s", ["--resume", "s", *NOWHERE]),
    "resume a copy": (search.main, "copies/one", ["--resume", "one", "--copy-to", "{}/copies", *NOWHERE]),
    "recheck": (recheck.main, "one", ["one", *NOWHERE]),
    "learn from": (search.main, "one", ["bloom7b", "--learn-from", "one", *NOWHERE]),
    "train": (train.main, "one", ["one", "--tokens", "2e9", "--decay-tokens", "1"]),
    "train on": (train.main, "training", ["{}/training/layout.json", "--tokens", "2e9", "--decay-tokens", "1",
                                          "--out", "{}/training"]),
    "converge": (converge.main, "one", ["one", "engine=none", "--steps", "1", "--out", "{}/new"]),
    "converge on": (converge.main, "comparison", ["{}/layout.json", "--steps", "1", "--data", "nowhere",
                                                     "--out", "{}/comparison"]),
    "export": (export.main, "one", ["one", "--to", "accelerate", "--tokens", "2e9", "--device", "cpu",
                                    "--out", "{}/new"]),
    "export a training": (export.main, "training", ["{}/training", "--out", "{}/new"]),
    "torchrun": (torchrun.main, "training", ["{}/training"]),
}  # fmt: skip
"""The command, the folder that is somebody else's, and arguments with a mistake that is found behind the gate."""
WITHOUT_STUDIES = ("torchrun",)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder with a study, several studies, a training, a comparison; pytest's cannot be entered by others."""
    place = Path(tempfile.mkdtemp(prefix="studies-"))
    place.chmod(0o755)
    with Study.create(place, "one") as study:
        study.record(header("one", options=to_json(StudyOptions(space="bloom7b"))))
        study.record(Measured(measurement=measurement()))
    write_group(place / "s", StudyGroup(counts=(1, 2), options=to_json(StudyOptions(space="bloom7b", gpus=(1, 2)))))
    shutil.copytree(place / "one", place / "copies" / "one")
    for name in ("training", "comparison"):
        (place / name).mkdir()
    content = json.dumps(to_json({"layout": Layout(engine="ddp"), "recipe": RECIPE}))
    for file in (place / "layout.json", place / "training" / "layout.json"):
        file.write_text(content)
    (place / "training" / PLAN).write_text(json.dumps({"format": 1, "id": "x", "plan": to_json(plan())}))
    yield place
    shutil.rmtree(place)


def _run(case: str, folder: Path, *further: str) -> int:
    main, _, arguments = OPENING[case]
    studies = () if case in WITHOUT_STUDIES else ("--studies", str(folder))
    return main([argument.format(folder) for argument in (*arguments, *further)] + [*studies])


def _content(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", OPENING)
@pytest.mark.parametrize("is_file", [False, True])
def test_what_is_another_user_s_is_used_only_with_trust(
    case: str, is_file: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs.root("giving files away")
    place = folder / OPENING[case][1]
    foreign = next((place / name for name in (JOURNAL, SCALING, PLAN) if is_file and (place / name).exists()), place)
    os.chown(foreign, NOBODY, NOBODY)
    before = _content(folder)
    assert _run(case, folder) == 2
    error = capsys.readouterr().err
    assert f"{foreign} belongs to user nobody" in error and "then give --trust" in error and error.count("\n") == 1
    assert _content(folder) == before
    if case != "torchrun":  # it would go on to its process group
        _run(case, folder, "--trust")
        assert "belongs to user nobody" not in capsys.readouterr().err


@pytest.mark.parametrize("case", OPENING)
def test_no_link_is_followed(case: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private = folder / "private"
    private.write_text("mine\n")
    link = folder / OPENING[case][1] / "measurements.csv"
    link.symlink_to(private)
    assert _run(case, folder) == 2
    assert f"error: {link} is a link" in capsys.readouterr().err
    assert private.read_text() == "mine\n" and not (folder / "new").exists()


@pytest.mark.parametrize("case", ["learn from", "train", "converge", "export", "export a training"])
def test_no_control_character_reaches_the_terminal(case: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = "\x1b]0;owned\x07\x1b[2J\x9b2J\r"
    shutil.rmtree(folder / "one")
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, name=f"m{bad}"))
    with Study.create(folder, "one") as study:
        study.record(header("one", recipes=(recipe,), space=f"s{bad}"))
        study.record(Measured(measurement=measurement(recipe=recipe)))
    (folder / "training" / PLAN).write_text(json.dumps({"format": bad, "id": bad, "plan": {}}))
    assert _run(case, folder) in (0, 2)
    output = capsys.readouterr()
    assert not set("\x1b\x07\x9b\r") & set(output.out + output.err)


def test_an_engine_is_not_imported_out_of_what_was_received(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a module beside a journal that names it: this user's own, as after tar or git."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    name = "received.evil:ENGINE"
    with Study.create(folder, "received") as study:
        study.record(header("received", engines={name: "0" * 12}, options=to_json(StudyOptions(space="bloom7b"))))
        study.record(Measured(measurement=measurement(on=Layout(engine=name, dp_replicate=4))))
    (folder / "received" / "evil.py").write_text("open('PWNED', 'w')\n")
    for main, arguments in (
        (search.main, ["--resume", "received", *NOWHERE]),
        (train.main, ["received", "--tokens", "2e9"]),
        (converge.main, ["received", "--steps", "4", "--out", "new"]),
        (export.main, ["received", "--to", "torchrun", "--tokens", "2e9", "--out", "new"]),
    ):
        assert main([*arguments, "--studies", str(folder)]) == 2
        assert f"engine {name} is not imported out of {folder / 'received'}" in capsys.readouterr().err
        assert not (folder / "PWNED").exists()
    assert report.main(["received", "--studies", str(folder), "--no-mlflow"]) == 0
    assert not (folder / "PWNED").exists()
    assert {JOURNAL, SCALING, PLAN} == set(engines.WRITTEN)


def test_every_command_is_declared() -> None:
    """Checks that a new command says which folders it opens; one that does gets a case of `OPENING`."""
    tops = {f"platform.{path.stem}" for path in (ROOT / "platform").glob("[a-z]*.py")}
    rooms = {f"platform.{path.parent.name}.__main__" for path in (ROOT / "platform").glob("*/__main__.py")}
    assert tops | rooms == set(COMMANDS)


def test_every_reader_of_a_journal_is_behind_the_gate() -> None:
    """Lists the modules that open a journal or a group's file themselves, with why each may."""
    sources = {
        str(path.relative_to(ROOT / "platform")): path.read_text(encoding="utf-8")
        for path in (ROOT / "platform").rglob("*.py")
    }
    opening = {name for name, source in sources.items() if re.search(r"(?<!def )\b(Tail|read_group)\(", source)}
    opening -= {"study/journal.py"}  # the reader itself
    assert opening == {
        "report/__main__.py",  # shows; asks for the owner before it writes
        "report/group_report.py",  # the same
        "search/session/several.py",  # admits
        "search/setup/old_studies.py",  # admits
        "study/group.py",  # of a study that is open
        "study/study.py",  # `Study.resume` admits; `read` shows
        "tracking/mirror.py",  # of a study that was admitted
    }
    importing = re.compile(r"^from platform\.study\.study import .*\bread\b", re.MULTILINE)
    by_read = {name for name, source in sources.items() if importing.search(source)}
    assert by_read == {
        "api/studies.py",  # shows, and writes nothing
        "report/__main__.py",
        "report/group_report.py",
        "search/rechecking/command.py",  # after the search itself wrote it
        "search/setup/rechecked.py",  # the points; `open_study` admits before anything of it runs
        "search/session/several.py",  # after the search itself wrote it
        "tracking/study_run.py",  # figures of the studies beside one that was admitted
        "train/target.py",  # admits
    }


def test_every_picture_shows_names_as_they_are() -> None:
    """Checks that matplotlib does not read what stands between two `$` as TeX."""
    drawing = [path for path in (ROOT / "platform").rglob("*.py") if "import Figure" in path.read_text()]
    assert len(drawing) >= 4
    assert [path for path in drawing if "show_dollars()" not in path.read_text()] == []
