"""Journals with a value of another type, or an odd one: the line is rejected, or it is read without a traceback."""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import platform.report.__main__ as report  # pyright takes `from platform import` for the standard module
import platform.search.__main__ as search
from platform.cluster.nodes import ClusterHandle
from platform.common.errors import ClusterError, InputError
from platform.search.session import session
from platform.study.study import read
from tests.cluster.probing.samples import probe
from tests.samples import RECIPE, layout, profile
from trainers.records.journal import GateCurves, Lagging, Line, Planned, PlannedLayout, Probed
from trainers.records.journal_lines import JournalError, checked, from_line, sealed, to_line

DATA = Path(__file__).with_name("data") / "journal.jsonl"
ODD: tuple[Any, ...] = (None, True, 3, -1, 0, 10**30, 2.5, float("nan"), "x", "", [], [1], {}, {"a": 1}, ["x"])
TRIED = 40
"""Number of readable changed journals that are reported and resumed: each takes 0.2 s."""
Keys = tuple[Any, ...]


def _lines() -> list[dict[str, Any]]:
    """Returns a real journal, with a line of each kind: a search of bloom7b on two cores, resumed and interrupted."""
    lines = [checked(line) for line in DATA.read_bytes().splitlines()]
    entries = (
        GateCurves(
            trial_id="t1",
            recipe=RECIPE,
            layout=layout(),
            steps=2,
            sequences=4,
            losses=(2.0, 1.0),
            grad_norms=(1.0, 1.0),
        ),
        profile(),
        Probed(probe=probe()),
        Lagging(node="10.0.0.3", pace=0.6, by="peak"),
        Planned(layouts=(PlannedLayout(recipe="r", layout=layout(), micro_batches=(1, 2), tokens_per_s=2e4),)),
    )
    return [*lines[:-1], *({**to_line(entry), "at": lines[-1]["at"]} for entry in entries), lines[-1]]


LINES = _lines()
FIRST_OF_KIND = tuple({line["kind"]: number for number, line in reversed(list(enumerate(LINES)))}.values())


def _places(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    """Yields the position of each value in a line, for a list only the first."""
    if keys:
        yield keys
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in inner:  # type: ignore[reportUnknownVariableType]
        yield from _places(item, (*keys, key))


def _changed(line: dict[str, Any], keys: Keys, value: Any) -> dict[str, Any]:
    changed: dict[str, Any] = copy.deepcopy(line)
    inner: Any = changed
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return changed


def _all_changed() -> list[tuple[int, dict[str, Any]]]:
    return [
        (number, _changed(LINES[number], keys, value))
        for number in FIRST_OF_KIND
        for keys in _places(LINES[number])
        for value in ODD
    ]


def _readable() -> list[tuple[int, dict[str, Any]]]:
    """Returns changed lines that are still read: their values have the right type."""
    readable: list[tuple[int, dict[str, Any]]] = []
    for number, changed in _all_changed():
        try:
            from_line(sealed(json.dumps(changed)))
            readable.append((number, changed))
        except JournalError:
            continue  # anything else that is raised is a traceback, and fails the test
    return readable


def test_a_value_of_another_type_is_a_rejected_line_with_its_reason() -> None:
    changed = _all_changed()
    # The copy is a study's first line, which is there.
    assert {LINES[number]["kind"] for number in FIRST_OF_KIND} == {kind.kind for kind in get_args(Line)} - {
        "study_copy"
    }
    assert len(_readable()) < len(changed) / 3
    with pytest.raises(JournalError, match=r"Measurement: tokens_per_s must be .* got 'fast'"):
        from_line(sealed(json.dumps(_changed(_line("measurement"), ("measurement", "tokens_per_s"), "fast"))))
    with pytest.raises(JournalError, match=r"steps_per_window must be a whole number of at most 64 bits, got 10+"):
        from_line(sealed(json.dumps(_changed(_line("measurement"), ("measurement", "steps_per_window"), 10**19))))
    with pytest.raises(JournalError, match="TrialEnd: wall_s must be a number, got True"):
        from_line(sealed(json.dumps(_changed(_line("trial_end"), ("wall_s",), True))))
    with pytest.raises(JournalError, match="StudyHeader: recipes must be a list, got an object"):
        from_line(sealed(json.dumps(_changed(_line("study"), ("recipes",), {}))))


def _line(kind: str) -> dict[str, Any]:
    return next(line for line in LINES if line["kind"] == kind)


@pytest.mark.slow
def test_an_odd_value_of_the_right_type_gives_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "old-1"
    readable = _readable()
    for number, changed in readable[:: max(1, len(readable) // TRIED)]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        lines = [sealed(json.dumps(changed if index == number else line)) for index, line in enumerate(LINES)]
        (folder / "journal.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "kept.json").symlink_to("/dev/null")  # a report draws no pictures where something is a link
        assert report.main(["old-1", "--studies", str(tmp_path), "--no-mlflow", "--json"]) in (0, 1, 2, 4), changed
        (folder / "kept.json").unlink()
        options = search.parse(["--resume", "old-1", "--studies", str(tmp_path), "--dry-run"])
        try:
            header = read(folder)[0].header
            assert header is not None
            handle = ClusterHandle(cluster=header.cluster, cpus_per_worker=1.0, driver_ip="")
            assert session.search(options, handle=handle) == 0, changed
        except (InputError, ClusterError) as error:
            assert "\n" not in str(error), changed
    assert "Traceback" not in capsys.readouterr().err
