"""A study outlives its node: after SIGTERM, its folder gone, the same command goes on from the copy elsewhere."""

import json
import shutil
from pathlib import Path

import pytest

from tests.whole_searches.session import Session, write_space
from tests.whole_searches.studies import all_ran
from trainers.records.journal import End, Measured, Resume

pytestmark = [pytest.mark.search, pytest.mark.heavy]


def test_the_same_command_goes_on_from_the_copy_after_the_node_is_gone(tmp_path: Path) -> None:
    axes = {"engine": ("ddp",), "grad_sync": ("last", "every")}
    space = write_space(tmp_path / "two.py", micro_batches=(1, 2), global_batch=8, axes=axes)
    place = tmp_path / "place"
    command = [str(space), "--address=local", "--searcher=sweep", "--steps=300", "--repeats=0"]
    command += ["--name=one", "--auto-resume", f"--copy-to={place}"]

    first, second = tmp_path / "first", tmp_path / "second"
    with Session(tmp_path / "a", first / "one" / "journal.jsonl", *command, f"--studies={first}") as session:
        session.wait_for("a measurement", lambda lines: [line for line in lines if isinstance(line, Measured)])
        session.process.terminate()
        assert session.end().code == 130
        before = session.lines()
    assert isinstance(before[-1], End)
    copied = (place / "one" / "journal.jsonl").read_bytes()
    assert copied == (first / "one" / "journal.jsonl").read_bytes()
    shutil.rmtree(first)

    with Session(tmp_path / "b", second / "one" / "journal.jsonl", *command, f"--studies={second}") as session:
        session_end = session.end()
        lines = session.lines()
    assert session_end.code == 0, session_end.err
    assert f"{len(before)} lines of one came from {place}." in " ".join(session_end.err.split())
    assert list(lines[: len(before)]) == list(before)
    assert sum(isinstance(line, Resume) for line in lines) == 1
    all_ran(lines, (1, 2), num_layouts=2)
    assert (place / "one" / "journal.jsonl").read_bytes() == (second / "one" / "journal.jsonl").read_bytes()
    assert json.loads((second / "one" / "layout.json").read_text())
