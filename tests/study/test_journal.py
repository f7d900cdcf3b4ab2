"""The journal: its content on disk after a kill, how a reader handles damage, and reading a growing file."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from platform.common.errors import ClusterError, InputError
from platform.study.journal import REJECTED, Tail, describe_newer, set_aside
from platform.study.study import Study, read
from tests.cluster.probing.samples import probe
from tests.samples import RECIPE, header, layout, measurement, profile
from trainers.records.journal import (
    End,
    Lagging,
    Line,
    Measured,
    Peak,
    Planned,
    PlannedLayout,
    Probed,
    Resume,
    RungStart,
    StudyCopy,
    TrialEnd,
    TrialStart,
)
from trainers.records.journal_lines import SCHEMA, JournalError, append, from_line, record, sealed, to_line
from trainers.records.probe import LibraryChoice
from trainers.spec.batch import BatchPoint

ROOT = Path(__file__).parents[2]

ENTRIES: list[Line] = [
    header(miniature=True, cap_gib=1.5, versions={"torch": "0.0"}),
    Peak(device="d", precision="bf16", tflops=700.0, spread=0.01),
    TrialStart(trial_id="t1", key="r-l", recipe=RECIPE, layout=layout(), micro_batches=(1, 2, 4)),
    RungStart(trial_id="t1", batch=BatchPoint(micro_batch=1, grad_accum=128), deadline_s=60.0),
    Measured(measurement=measurement()),
    TrialEnd(trial_id="t1", key="r-l", state="done", wall_s=10.0, gpu_s=40.0),
    Resume(argv=("search", "--resume", "x"), commit="0123456", study=header(at="2026-01-01T00:00:00+00:00")),
    profile(),
    Planned(layouts=(PlannedLayout(recipe="r", layout=layout(), micro_batches=(1, 2), tokens_per_s=2e4),)),
    Lagging(node="10.0.0.3", pace=0.6, by="figures"),
    Probed(probe=probe(choice=LibraryChoice(library="NCCL", hosts=4, networks=("IB",)))),
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
    contents = path.read_bytes()
    kinds: list[str] = []
    growing = tmp_path / "growing.jsonl"
    slow = Tail(growing)
    for end in range(len(contents) + 1):
        growing.write_bytes(contents[:end])
        kinds += [entry.kind for entry in slow.read()]
    assert kinds == ["peak", "end"]
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
    set_aside_lines = [json.loads(line) for line in (tmp_path / REJECTED).read_text().splitlines()]
    assert [set_aside_line["text"] for set_aside_line in set_aside_lines] == [cut.decode()]


def test_a_whole_line_that_only_lacks_its_newline_is_used(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    record(path, ENTRIES[1])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert Tail(path).read() == []
    assert [entry.kind for entry in Tail(path).read(last=True)] == ["peak"]
    record(path, ENTRIES[6])
    assert [entry.kind for entry in Tail(path).read()] == ["peak", "resume"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\x00\x00\x00", "not a whole JSON object"),
        ("[1]", "not a JSON object"),
        ('{"kind": "party", "at": "2026-01-01T00:00:00+00:00"}', "unknown kind 'party'"),
        ('{"kind": "resume"}', "without 'at'"),
        ('{"kind": "resume", "at": "yesterday"}', "not a valid resume"),
        ('{"kind": "resume", "at": "2026-01-01T00:00:00"}', "must have a time zone"),
        ('{"kind": "resume", "at": "2026-01-01T00:00:00+00:00", "schema": "1"}', "schema must be a whole number"),
        ('{"kind": ["resume"], "at": "2026-01-01T00:00:00+00:00"}', "unknown kind"),
        ("[" * 100_000, "not a whole JSON object"),
        ('{"kind": "resume", "at": "2026-01-01T00:00:00+00:00", "mood": 1}', "no field mood"),
        ('{"kind": "measurement", "at": "2026-01-01T00:00:00+00:00", "measurement": null}', "must be a JSON object"),
    ],
)
def test_what_is_no_line_says_why(text: str, reason: str) -> None:
    line = sealed(json.dumps({"schema": SCHEMA, **json.loads(text)})) if text.startswith("{") else text
    with pytest.raises(JournalError, match=reason):
        from_line(line)


def test_a_state_that_no_trial_can_end_in_is_refused() -> None:
    with pytest.raises(ValueError, match="'finished'"):
        TrialEnd(trial_id="t", key="k", state="finished", wall_s=0, gpu_s=0)  # type: ignore[arg-type]


def test_lines_of_a_newer_schema_are_told_apart_with_the_commit_that_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    record(path, ENTRIES[1])
    append(path, {**to_line(ENTRIES[4]), "schema": SCHEMA + 1, "news": True})
    append(path, {**to_line(Resume(commit="feedface")), "schema": SCHEMA + 1})
    append(path, {**to_line(ENTRIES[4]), "schema": SCHEMA + 1})
    record(path, ENTRIES[5])
    tail = Tail(path)
    assert [entry.kind for entry in tail.read()] == ["peak", "trial_end"] and not tail.rejected
    schema = f"written by a newer version (journal schema {SCHEMA + 1}, this one reads up to {SCHEMA})"
    assert [(rejected_line.number, rejected_line.why) for rejected_line in tail.newer] == [
        (2, f"{schema}: update this checkout"),
        (3, f"{schema}: the checkout of commit feedface reads it"),
        (4, f"{schema}: the checkout of commit feedface reads it"),
    ]
    assert describe_newer(tmp_path, tail.newer[1:2]) == f"Line 3 of {path} was {tail.newer[1].why}"


def test_a_line_of_an_unknown_kind_is_skipped_only_where_it_is_marked_optional(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    of_later = {"kind": "weather", "wind": 3}
    append(path, {**of_later, "schema": SCHEMA, "optional": True})
    append(path, {**of_later, "schema": SCHEMA + 1, "optional": True})
    append(path, {**of_later, "schema": SCHEMA})
    append(path, {**of_later, "schema": SCHEMA, "optional": "true"})
    record(path, ENTRIES[1])
    tail = Tail(path)
    assert [entry.kind for entry in tail.read()] == ["peak"]
    assert [rejected_line.number for rejected_line in tail.rejected] == [3, 4] and not tail.newer


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.kind)
def test_any_byte_that_changed_is_seen(tmp_path: Path, entry: Line) -> None:
    path = tmp_path / "journal.jsonl"
    record(path, entry)
    contents = path.read_bytes()
    for place in range(len(contents) - 1):
        changed = bytearray(contents)
        changed[place] ^= 1  # a digit becomes another digit, a letter another letter
        with pytest.raises(JournalError):
            from_line(bytes(changed))
    assert from_line(contents) is not None


def test_a_line_without_its_checksum_or_of_an_older_version_is_not_used() -> None:
    line = {**to_line(ENTRIES[6]), "at": "2026-01-01T00:00:00+00:00"}
    with pytest.raises(JournalError, match="checksum does not match"):
        from_line(json.dumps(line))
    with pytest.raises(JournalError, match=r"older version \(journal schema 1, this one reads 2\)"):
        from_line(json.dumps({**line, "schema": 1}))


def test_a_torn_file_of_rejected_lines_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text("first\nsecond\n")
    tail = Tail(path)
    assert tail.read() == []
    set_aside(tmp_path, tail.rejected[:1])
    aside = tmp_path / REJECTED
    torn = aside.read_bytes()[:-20]
    aside.write_bytes(torn)
    set_aside(tmp_path, tail.rejected)
    lines = aside.read_bytes().splitlines()
    assert lines[0] == torn and [json.loads(line)["text"] for line in lines[1:]] == ["first", "second"]
    before = aside.read_bytes()
    set_aside(tmp_path, tail.rejected)
    assert aside.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["journal.jsonl", REJECTED]


def test_a_link_in_place_of_the_journal_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("private\n")
    path = tmp_path / "journal.jsonl"
    path.symlink_to(other)
    with pytest.raises(InputError, match="is a link"):
        Tail(path).read()
    with pytest.raises(OSError, match="symbolic links"):
        record(path, ENTRIES[1])
    assert other.read_text() == "private\n"


WRITER = """
import sys
from tests.samples import measurement
from trainers.records.journal import Measured
from trainers.records.journal_lines import append, to_line
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
        output = [process.stdout.readline() for _ in range(5)]
        time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        output += process.stdout.readlines()
        process.wait()
        last_said = int([line for line in output if line.endswith(b"\n")][-1])
        record(path, ENTRIES[6])
        lines = path.read_bytes().splitlines()
        complete_lines = [json.loads(line) for line in lines if line.endswith(b"}")]
        assert [complete_line["number"] for complete_line in complete_lines[:-1]][-1] >= last_said
        assert complete_lines[-1]["kind"] == "resume"
        path.unlink()


def test_a_line_and_a_new_files_name_are_flushed_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[int, int]] = []
    fsync = os.fsync

    def recorded_fsync(file: int) -> None:
        fsync(file)
        status = os.fstat(file)
        flushed.append((status.st_ino, status.st_size))

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    path = tmp_path / "journal.jsonl"
    record(path, ENTRIES[1])
    first = path.stat()
    assert flushed[0] == (first.st_ino, first.st_size)
    assert flushed[1][0] == tmp_path.stat().st_ino
    record(path, ENTRIES[6])
    assert flushed[2:] == [(first.st_ino, path.stat().st_size)]


def test_writers_side_by_side_do_not_mix_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    code = "import sys\nfrom trainers.records.journal_lines import append\n" + (
        "for n in range(100): append(sys.argv[1], {'kind': sys.argv[2], 'n': n, 'pad': 'y' * 3000})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), name], cwd=ROOT) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    for name in "ab":
        assert [line["n"] for line in lines if line["kind"] == name] == list(range(100))


def test_appending_needs_neither_the_driver_nor_torch() -> None:
    absent = "[m for m in ('torch', 'ray', 'platform.study') if m in sys.modules]"
    code = f"import sys, trainers.records.journal_lines; print({absent})"
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


def test_a_journal_that_was_moved_away_is_not_begun_anew(tmp_path: Path) -> None:
    """Checks it, since a journal without its first line says nothing of what follows."""
    with Study.create(tmp_path, "one") as study:
        study.record(header("one"))
        moved = study.journal.rename(tmp_path / "moved")
        with pytest.raises(ClusterError, match=rf"bring it back, then continue with --resume one --studies {tmp_path}"):
            study.record(Measured(measurement=measurement()))
        assert not study.journal.exists()
        moved.rename(study.journal)
        study.record(Measured(measurement=measurement()))


def test_a_study_of_one_session_survives_damage_to_its_first_line(tmp_path: Path) -> None:
    with Study.create(tmp_path, "one") as study:
        first = header("one")
        for line in (first, StudyCopy(study=first), Measured(measurement=measurement())):
            study.record(line)
    text = bytearray(study.journal.read_bytes())
    text[50] ^= 1
    study.journal.write_bytes(text)
    history, remarks = read(study.path, last=True)
    assert history.header is not None and history.header.name == "one" and len(history.measurements) == 1
    assert history.sessions == 1 and "Line 1 of" in remarks[0]
