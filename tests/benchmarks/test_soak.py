"""The soak's command and its tally, without a session: no Ray is started."""

import itertools
from pathlib import Path

import pytest

from benchmarks.soak import __main__ as soak
from benchmarks.soak.searches import unrecorded
from benchmarks.soak.tally import Tally
from tests.samples import layout, measurement
from trainers.records.journal import Line, Measured, RungStart
from trainers.spec.batch import BatchPoint


@pytest.mark.parametrize("subject", [(), ("searches",), ("trainings",)])
def test_an_unknown_fault_is_refused_before_anything_starts(
    subject: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak.tempfile, "mkdtemp", lambda **_: pytest.fail("a folder was made"))
    with pytest.raises(SystemExit) as refused:
        soak.main([*subject, "--faults", "worker killed,moon falls"])
    assert refused.value.code == 2 and "got 'moon falls'" in capsys.readouterr().err


def test_a_tally_is_clean_until_a_session_ends_oddly() -> None:
    tally = Tally(lost_title="measurements lost", again_title="measurements run twice")
    tally.counts.update({"studies": 1, "sessions": 3})
    tally.faults.update(["disk full", "disk full"])
    tally.judge("session 0", 3, {0, 3}, "cluster fault: the disk is full")
    tally.judge("session 1", None, {0, 3}, "")
    assert tally.is_clean
    tally.judge("session 2", 1, {0, 3}, "first\nTraceback\nlast")
    assert not tally.is_clean and len(tally.odd) == 2
    shown = str(tally)
    assert "1 studies, 3 sessions" in shown and "disk full 2 (2 in all)" in shown
    assert "measurements lost: 0" in shown and "session 2: exit code 1: first | Traceback | last" in shown


def test_a_rung_that_was_left_without_a_measurement_is_named() -> None:
    at = "2026-01-01T00:00:00+00:00"
    rungs: list[Line] = [
        RungStart(trial_id="t1", batch=BatchPoint.of(measurement().recipe, layout(), size), deadline_s=1.0, at=at)
        for size in (1, 2, 4)
    ]
    measured: list[Line] = [Measured(measurement=measurement(micro_batch=1), at=at)]
    (sentence,) = unrecorded([*itertools.chain(rungs, measured)])
    assert sentence == "t1 went on from micro-batch 2, of which nothing was recorded"
