"""The journal: what is on disk after a kill, what a reader makes of damage, what a growing file gives."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from platform.common.errors import InputError
from platform.study.journal import REJECTED, Tail, set_aside
from tests.samples import RECIPE, header, layout, measurement, profile
from trainers.journal import (
    SCHEMA,
    End,
    JournalError,
    Line,
    Measured,
    Peak,
    Planned,
    PlannedLayout,
    Resume,
    RungStart,
    TrialEnd,
    TrialStart,
    append,
    from_line,
    record,
    to_line,
)
from trainers.layout import BatchPoint

ROOT = Path(__file__).parents[3]

ENTRIES: list[Line] = [
    header(miniature=True, cap_gib=1.5, argv=("search", "bloom7b"), versions={"torch": "0.0"}),
    Peak(device="d", precision="bf16", tflops=700.0, spread=0.01),
    TrialStart(trial_id="t1", key="r-l", recipe=RECIPE, layout=layout(), micro_batches=(1, 2, 4)),
    RungStart(trial_id="t1", batch=BatchPoint(micro_batch=1, grad_accum=128), deadline_s=60.0),
    Measured(measurement=measurement()),
    TrialEnd(trial_id="t1", key="r-l", state="done", wall_s=10.0, gpu_s=40.0),
    Resume(argv=("search", "--resume", "x")),
    profile(),
    Planned(layouts=(PlannedLayout(recipe="r", layout=layout(), micro_batches=(1, 2), tokens_per_s=2e4),)),
    End(exit_code=0, wall_s=12.0, gpu_s=40.0),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.kind)
def test_every_kind_comes_back_as_it_was_written(tmp_path: Path, entry: Line) -> None:
    path = tmp_path / "journal.jsonl"
    record(path, entry)
    (back,) = Tail(path).read()
    assert back.at.endswith("+00:00")
    assert {**to_line(back), "at": ""} == to_line(entry)


def test_a_name_that_is_not_utf_8_survives(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    entry = Resume(argv=("search", os.fsdecode(b"stra\xdfe.py"), "stra\u00dfe.py"))
    record(path, entry)
    (back,) = Tail(path).read()
    assert isinstance(back, Resume) and back.argv == entry.argv


def test_figures_that_are_not_finite_survive(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    odd = (1.0, float("inf"), float("nan"))
    record(path, Measured(measurement=measurement(losses=odd, grad_norms=odd)))
    (back,) = Tail(path).read()
    assert isinstance(back, Measured)
    for series in (back.measurement.losses, back.measurement.grad_norms):
        assert series[1] == float("inf") and series[2] != series[2]


def test_tail_gives_each_line_once_and_never_half_of_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    record(path, ENTRIES[1])
    assert [entry.kind for entry in tail.read()] == ["peak"]
    assert tail.read() == []
    record(path, ENTRIES[-1])
    whole = path.read_bytes()
    seen: list[str] = []
    growing = tmp_path / "growing.jsonl"
    slow = Tail(growing)
    for end in range(len(whole) + 1):
        growing.write_bytes(whole[:end])
        seen += [entry.kind for entry in slow.read()]
    assert seen == ["peak", "end"]
    assert slow.rejected == []


@pytest.mark.parametrize("keep", [1, 40, -2], ids=["one byte", "part", "all but the brace"])
def test_a_line_cut_in_half_is_set_aside_and_the_rest_used(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "journal.jsonl"
    record(path, ENTRIES[1])
    before = path.read_bytes()
    record(path, ENTRIES[5])
    cut = path.read_bytes()[len(before) :][:keep]
    path.write_bytes(before + cut)
    record(path, ENTRIES[6])  # the resumed run appends to a file that ends in half a line
    tail = Tail(path)
    assert [entry.kind for entry in tail.read()] == ["peak", "resume"]
    (rejected,) = tail.rejected
    assert rejected.number == 2
    assert rejected.text == cut.decode()
    sentence = set_aside(tmp_path, tail.rejected)
    assert "Line 2" in sentence and REJECTED in sentence
    set_aside(tmp_path, tail.rejected)
    kept = [json.loads(line) for line in (tmp_path / REJECTED).read_text().splitlines()]
    assert [each["text"] for each in kept] == [cut.decode()]


def test_a_whole_line_that_only_lacks_its_newline_is_used(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    record(path, ENTRIES[1])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert Tail(path).read() == []
    assert [entry.kind for entry in Tail(path).read(last=True)] == ["peak"]
    record(path, ENTRIES[6])
    assert [entry.kind for entry in Tail(path).read()] == ["peak", "resume"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("\x00\x00\x00", "not a whole JSON object"),
        ("[1]", "not a JSON object"),
        ('{"kind": "party", "at": "2026-01-01T00:00:00+00:00"}', "unknown kind 'party'"),
        ('{"kind": "resume"}', "without 'at'"),
        ('{"kind": "resume", "at": "yesterday"}', "not a valid resume"),
        ('{"kind": "resume", "at": "2026-01-01T00:00:00+00:00", "mood": 1}', "no field mood"),
        ('{"kind": "measurement", "at": "2026-01-01T00:00:00+00:00", "measurement": null}', "wants a JSON object"),
    ],
)
def test_what_is_no_line_says_why(text: str, why: str) -> None:
    with pytest.raises(JournalError, match=why):
        from_line(text)


def test_a_state_that_no_trial_can_end_in_is_refused() -> None:
    with pytest.raises(ValueError, match="'finished'"):
        TrialEnd(trial_id="t", key="k", state="finished", wall_s=0, gpu_s=0)  # type: ignore[arg-type]


def test_a_newer_schema_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    record(path, ENTRIES[1])
    append(path, {**to_line(ENTRIES[6]), "schema": SCHEMA + 1, "news": True})
    with pytest.raises(InputError, match=r"line 2 .* newer version .*schema 2.*update") as caught:
        Tail(path).read()
    assert "\n" not in str(caught.value)


WRITER = """
import sys
from tests.samples import measurement
from trainers.journal import Measured, append, to_line
line = to_line(Measured(measurement=measurement()))
line["pad"] = "x" * 200_000
number = 0
while True:
    append(sys.argv[1], {**line, "number": number})
    print(number, flush=True)
    number += 1
"""


def test_what_a_killed_writer_said_it_wrote_is_there(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(5)]
        time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
        process.wait()
        last_said = int([line for line in said if line.endswith(b"\n")][-1])
        record(path, ENTRIES[6])
        lines = path.read_bytes().splitlines()
        whole = [json.loads(line) for line in lines if line.endswith(b"}")]
        assert [each["number"] for each in whole[:-1]][-1] >= last_said
        assert whole[-1]["kind"] == "resume"
        path.unlink()


def test_a_line_and_a_new_files_name_are_flushed_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[int, int]] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        fsync(file)
        status = os.fstat(file)
        flushed.append((status.st_ino, status.st_size))

    monkeypatch.setattr(os, "fsync", noted)
    path = tmp_path / "journal.jsonl"
    record(path, ENTRIES[1])
    first = path.stat()
    assert flushed[0] == (first.st_ino, first.st_size)
    assert flushed[1][0] == tmp_path.stat().st_ino
    record(path, ENTRIES[6])
    assert flushed[2:] == [(first.st_ino, path.stat().st_size)]


def test_writers_side_by_side_do_not_mix_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    code = "import sys\nfrom trainers.journal import append\n" + (
        "for n in range(100): append(sys.argv[1], {'kind': sys.argv[2], 'n': n, 'pad': 'y' * 3000})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), name], cwd=ROOT) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = [json.loads(line) for line in path.read_text().splitlines() if line]
    for name in "ab":
        assert [each["n"] for each in found if each["kind"] == name] == list(range(100))


def test_appending_needs_neither_the_driver_nor_torch() -> None:
    code = "import sys, trainers.journal; print([m for m in ('torch', 'ray', 'platform.study') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_full_disk_is_an_error_and_not_silence() -> None:
    with pytest.raises(OSError, match="No space"):
        record("/dev/full", ENTRIES[6])


def test_what_a_journal_says_again_and_again_is_one_object(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for micro_batch in (1, 2):
        record(path, Measured(measurement=measurement(micro_batch=micro_batch)))
    first, second = (line.measurement for line in Tail(path).read() if isinstance(line, Measured))
    assert first != second
    assert first.recipe is second.recipe and first.layout is second.layout
    assert first.recipe == RECIPE and first.layout == layout()
