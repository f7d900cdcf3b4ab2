"""`report` and `--learn-from` over a folder of a team's studies: each is shown, and none counts for another."""

import json
from pathlib import Path

import pytest

import platform.plan.__main__ as plan
import platform.report.__main__ as report  # pyright takes `from platform import` for the standard module
import platform.search.__main__ as search
from platform.search.setup.old_studies import folders_of
from tests.buckets import s3_bucket
from tests.report.test_report_options import FIRST, SECOND, write
from tests.samples import measurement


@pytest.fixture
def team(tmp_path: Path) -> Path:
    """Returns a folder of three studies by two people, of which two measured one layout, and of a damaged one."""
    write(tmp_path / "team/ann", "first", FIRST, SECOND)
    write(tmp_path / "team/bob", "other", measurement(tokens_per_s=44000.0))
    write(tmp_path / "team", "shared", SECOND)
    (tmp_path / "team/bob/broken").mkdir()
    (tmp_path / "team/bob/broken/journal.jsonl").write_text("{}\n")
    return tmp_path / "team"


def test_each_study_has_a_row_and_what_several_measured_stands_side_by_side(
    team: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    before = {path: path.stat().st_mtime_ns for path in team.rglob("*")}
    assert report.main([f"{team}/"]) == 0
    printed = capsys.readouterr()
    assert "Left out: bob/broken: " in printed.err
    head, shared = printed.out.split("Measured in several studies")
    assert [head.count(name) for name in ("ann/first", "bob/other", "shared")] == [1, 1, 1]
    assert "ann/first 40,000, bob/other 44,000" in shared and "10.0 %" in shared
    assert "ann/first 50,000, shared 50,000" in shared and "0.0 %" in shared
    assert "no study's answer rests on another's figures" in shared
    assert {path: path.stat().st_mtime_ns for path in team.rglob("*")} == before, "nothing is written"


def test_as_json_and_as_a_page(team: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([f"{team}/", "--json", "--html", str(tmp_path / "page.html")]) == 0
    assert [study["study"] for study in json.loads(capsys.readouterr().out)["studies"]] == ["first", "other", "shared"]
    assert "ann" not in (tmp_path / "page.html").read_text()[:200]


def test_a_search_learns_from_all_of_them(team: Path) -> None:
    names = [path.relative_to(team).as_posix() for path in folders_of(team.parent, f"{team}/")]
    assert names == ["ann/first", "bob/broken", "bob/other", "shared"]


def test_a_bucket_s_studies_are_read_as_a_folder_s(
    team: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    files = {f"studies/{path.relative_to(team)}": path for path in team.rglob("*") if path.is_file()}
    files["far/a/b/c/deep/journal.jsonl"] = team / "shared" / "journal.jsonl"
    assert report.main([f"{team}/", "--json"]) == 0
    near = capsys.readouterr().out
    with s3_bucket("lab", files):
        assert report.main(["s3://lab/studies/", "--json", "--html", str(tmp_path / "page.html")]) == 0
        assert capsys.readouterr().out == near
        assert report.main(["s3://lab/studies/ann/first", "--markdown"]) == 0
        assert "50,000" in capsys.readouterr().out
        assert report.main(["s3://lab/studies/ann/first", "--csv", str(tmp_path / "first.csv")]) == 0
        assert len((tmp_path / "first.csv").read_text().splitlines()) == 3
        assert report.main(["s3://lab/studies", "--csv", str(tmp_path / "first.csv")]) == 2
        assert "studies is a folder of 4 studies: give one's name with --csv" in capsys.readouterr().err
        assert plan.main(["bloom7b", "--cluster", "8xH100-SXM", "--learn-from", "s3://lab/studies"]) == 2
        assert "s3://lab/studies is a folder of studies: name one" in capsys.readouterr().err
        names = [path.name for path in folders_of(tmp_path, "s3://lab/studies")]
        assert names == ["first", "broken", "other", "shared"]
        for first, speed in (("s3://lab/studies/ann/first", 5e4), (f"s3://lab/studies/ann/first:{FIRST.id[:8]}", 4e4)):
            assert report.main(["--compare", first, f"{team}/ann/first", "--json"]) == 0
            compared = json.loads(capsys.readouterr().out)
            assert [compared[side]["tokens_per_s"] for side in ("first", "second")] == [speed, 5e4]
        assert report.main(["--compare", "s3://lab/studies", f"{team}/ann/first"]) == 2
        assert "s3://lab/studies is a folder of studies: name one of them, such as ann/first" in capsys.readouterr().err
        assert report.main(["--compare", "s3://lab/studies/ann/first:zz", f"{team}/ann/first"]) == 2
        assert "no measurement's id begins with 'zz'" in capsys.readouterr().err
        assert report.main(["s3://lab/far"]) == 2
        assert "folders with one, such as s3://lab/far/a/b/c/deep" in capsys.readouterr().err
        assert report.main(["s3://lab/none"]) == 2
        assert "there is no study at s3://lab/none" in capsys.readouterr().err
        argv = ["bloom7b", "--dry-run", "--learn-from", "s3://lab/studies"]
        assert search.main([*argv, "--studies", str(tmp_path)]) == 2
        assert "add --trust" in capsys.readouterr().err
        assert search.parse(argv).study.learn_from == "s3://lab/studies"


def test_every_view_of_a_bucket_names_its_address(
    team: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks for the path of the local copy in all that is printed and written, refusals and remarks too."""
    monkeypatch.setenv("COLUMNS", "300")
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(copies))
    files: dict[str, Path | bytes] = {f"studies/{path.relative_to(team)}": path for path in team.rglob("*.jsonl")}
    files["odd/journal.jsonl"] = (team / "ann/first/journal.jsonl").read_bytes() + b"{}\n"
    studies, odd, broken = "s3://views/studies/", "s3://views/odd", "s3://views/studies/bob/broken"
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    views = {
        (studies,): "Studies in s3://views/studies\n",
        (odd,): "Studies in s3://views/odd\n",
        (odd, "--markdown"): "of s3://views/odd/journal.jsonl could not be used",
        (odd, "--json", "--csv", f"{table}"): "",
        (odd, "s3://views/studies/ann/first", "--html", f"{page}"): str(page),
        (studies, odd, "--html", f"{page}"): "s3://views/studies/ is a folder of studies",
        (studies, "--csv", f"{table}"): "s3://views/studies is a folder of 4 studies",
        (broken,): "no study in s3://views/studies/bob/broken can be read",
        (broken, odd, "--html", f"{page}"): "s3://views/studies/bob/broken/journal.jsonl does not begin",
        ("--compare", broken, odd): "s3://views/studies/bob/broken/journal.jsonl does not begin",
    }
    with s3_bucket("views", files):
        for words, named in views.items():
            report.main(words)
            printed = capsys.readouterr()
            everything = (
                printed.out + printed.err + "".join(path.read_text() for path in (page, table) if path.exists())
            )
            assert named in everything and str(copies) not in everything, words
            assert "\n.  " not in printed.out, "a study has a name"
            assert "  by  " not in printed.out, "the copy's owner is not the study's"
        assert plan.main(["bloom7b", "--cluster", "8xH100-SXM", "--learn-from", broken]) == 2
        assert "s3://views/studies/bob/broken/journal.jsonl does not begin" in capsys.readouterr().err


def test_a_bucket_s_object_lands_nowhere_outside_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a name that climbs out of the folder, by which a client reads an object of another bucket."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outside = {"outside/journal.jsonl": b"of another\n", "studies/../../team/outside/journal.jsonl": b"of another\n"}
    with s3_bucket("team", outside):
        assert report.main(["s3://team/studies"]) == 2
    assert "holds an object whose name has '..' in it" in capsys.readouterr().err
    assert not list(tmp_path.rglob("journal.jsonl"))
