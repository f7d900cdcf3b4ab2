"""`platform.report` with several studies, a page, or two measurements to compare; from journals alone."""

import json
import shlex
from pathlib import Path

import pytest

import platform.report.__main__ as report  # pyright takes `from platform import` for the standard module
from platform.report.endings import last_ending
from platform.study.study import Study
from tests.samples import header, layout, measurement
from trainers.records.journal import End, Measured
from trainers.records.measurement import Measurement

FIRST, SECOND = measurement(), measurement(on=layout(checkpointing="full"), tokens_per_s=50000.0)


def write(studies: Path, name: str, *measured: Measurement) -> None:
    with Study.create(studies, name) as study:
        study.record(header(name))
        for point in measured:
            study.record(Measured(measurement=point))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    write(tmp_path, "one", FIRST)
    write(tmp_path, "two", SECOND)
    return tmp_path


def run(studies: Path, *arguments: str) -> int:
    return report.main([*arguments, "--studies", str(studies), "--no-mlflow"])


def test_one_page_holds_several_studies(studies: Path, capsys: pytest.CaptureFixture[str]):
    path = studies / "page.html"
    assert run(studies, "one", "two", "--html", str(path)) == 0
    text = path.read_text()
    assert "one" in text and "two" in text and "40,000" in text and "50,000" in text
    shown = capsys.readouterr().out
    assert str(path) in shown and shown.count("Fastest") == 2


def test_the_report_of_a_study_ends_with_the_command_that_trains_its_winner(
    studies: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(studies, "one") == 0
    command = f"python -m platform.train one --studies {shlex.quote(str(studies))} --tokens "
    assert f"\nTrain it: {command}" in capsys.readouterr().out


def test_a_page_of_one_study_stands_beside_its_table(studies: Path, capsys: pytest.CaptureFixture[str]):
    path = studies / "page.html"
    assert run(studies, "one", "--html", str(path)) == 0
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert str(path) in capsys.readouterr().out


@pytest.mark.parametrize(("form", "begins"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures_in_another_format(studies: Path, form: str, begins: bytes):
    assert run(studies, "one", "--pictures", form) == 0
    for name in ("heat-map", "speed-memory"):
        assert (studies / "one" / f"{name}.{form}").read_bytes().startswith(begins)


def test_winners_and_measurements_are_compared(studies: Path, capsys: pytest.CaptureFixture[str]):
    assert run(studies, "--compare", "one", f"two:{SECOND.id[:8]}") == 0
    shown = capsys.readouterr().out.splitlines()
    assert "25.0% faster" in shown[0] and shown[1].startswith("checkpointing: none to full")
    assert run(studies, "--compare", "one", "two", "--json") == 0
    assert json.loads(capsys.readouterr().out)["changes"][0]["names"] == ["checkpointing"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "no study is named"),
        (("one", "two"), "give --html FILE for one page on them"),
        (("one", "two", "--html", "x.html", "--csv", "x.csv"), "one and two is several studies"),
        (("one", "--compare", "one", "two"), "--compare A B goes with neither"),
        (("--compare", "one", "three"), "no study 'three'"),
        (("--compare", "one:zz", "two"), "no measurement's id begins with 'zz'"),
        (("one", "--html", "/proc/none/x.html"), "cannot be written"),
    ],
)
def test_a_mistake_is_one_sentence(
    studies: Path, arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
):
    assert run(studies, *arguments) == 2
    output = capsys.readouterr().err.strip().splitlines()
    assert output[-1].startswith("error: ") and reason in output[-1]


def test_a_command_to_go_on_quotes_the_study_s_name() -> None:
    sentence = last_ending(None, Path("/shared/all studies/my study"))
    assert shlex.split(sentence.partition("go on with: ")[2])[3:] == [
        *("--resume", "my study"),
        *("--studies", "/shared/all studies"),
    ]
