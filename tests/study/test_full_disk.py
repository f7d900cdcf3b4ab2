"""A study on a disk that is really full: one sentence for each thing that cannot be written, and nothing is lost.

`tests/faults/test_disk.py` fills the disk of a search that runs.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import platform.report.__main__ as report  # pyright takes `from platform import` for the standard module
from platform.common.errors import ClusterError, InputError
from platform.study.lock import is_locked
from platform.study.study import Study
from tests.disks import small_disk
from tests.samples import header, measurement
from trainers.records.journal import Measured, Resume


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yields a full disk with one study, whose journal ends in half a line."""
    with small_disk(tmp_path / "disk", 1) as folder:
        with Study.create(folder, "one") as study:
            study.record(header("one"))
            study.record(Measured(measurement=measurement()))
        with study.journal.open("a") as journal:
            journal.write('{"kind": "measu')
        with (folder / "filler").open("wb") as file, contextlib.suppress(OSError):
            while True:
                os.write(file.fileno(), b"x" * 4096)
        yield folder


def test_a_study_is_taken_up_again_once_there_is_room(disk: Path) -> None:
    before = (disk / "one" / "journal.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"rejected.jsonl cannot be written: No space left on device: make room"):
        Study.resume(disk, "one")
    assert not is_locked(disk / "one")
    assert sorted(path.name for path in (disk / "one").iterdir()) == ["journal.jsonl", "lock"]
    (disk / "filler").unlink()
    study, history, remark = Study.resume(disk, "one")
    with study:
        assert len(history.measurements) == 1 and "Line 3" in remark
    assert study.journal.read_bytes() == before


def test_a_line_that_finds_no_room_says_how_to_go_on(disk: Path) -> None:
    (disk / "one" / "journal.rejected.jsonl").touch()
    (disk / "one" / "journal.jsonl").write_bytes((disk / "one" / "journal.jsonl").read_bytes().rpartition(b"\n")[0])
    with (
        Study.resume(disk, "one")[0] as study,
        pytest.raises(
            ClusterError, match=r"\(No space left on device\); .*: make room, then continue with --resume one"
        ),
    ):
        for _ in range(200):  # the last page of the file has some lines' room
            study.record(Resume())


def test_a_report_shows_the_result_without_files(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["one", "--studies", str(disk), "--no-mlflow"]) == 0
    output = capsys.readouterr()
    assert "No space left on device: make room, then resume; the result is shown without files" in output.err
    assert "40,000" in output.out and "Traceback" not in output.err
