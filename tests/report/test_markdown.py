"""Results and plans as Markdown: what is read back from it is what the other writers have."""

import re
from pathlib import Path

import pytest

from platform.plan.__main__ import main as plan
from platform.report.columns import on_terminal
from platform.report.markdown import as_markdown, escaped, table_lines
from platform.report.table import Column, Table
from platform.report.terminal import measured_rows
from tests.report.test_report_options import run, studies
from tests.samples import layout, measurement, oom, result_of, skipped
from trainers.records.measurement import Outcome

__all__ = ["studies"]
AWKWARD = "a | b\n<b>\\ `c` *d* ~e~ [f](g) | "


def read_back(line: str) -> list[str]:
    """Returns the cells of a table's line as Markdown shows them."""
    cells = re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]
    return [re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells]


def tables_of(text: str) -> list[list[list[str]]]:
    """Returns the cells of each table, titles first."""
    tables = re.findall(r"^\|.*(?:\n\|.*)*", text, flags=re.MULTILINE)
    return [[read_back(line) for line in table.splitlines() if not re.fullmatch(r"[|:\- ]+", line)] for table in tables]


def test_a_table_keeps_its_cells_whatever_they_hold() -> None:
    columns: list[Column[str]] = [Column(title="what", value=str, left=True), Column(title="long\ntitle", value=len)]
    titles, rules, row = table_lines(Table(columns=columns, rows=[AWKWARD]))
    assert read_back(titles) == ["what", "long title"] and read_back(rules) == [":--", "--:"]
    assert read_back(row) == [" ".join(AWKWARD.split()), str(len(AWKWARD))]


def test_a_study_has_the_terminal_s_columns_and_rows() -> None:
    points = [
        measurement(micro_batch=2, tokens_per_s=41000.0, step_time_derived=True),
        measurement(on=layout(checkpointing="full"), tokens_per_s=43000.0),
        measurement(on=layout(checkpointing="full"), tokens_per_s=42000.0, repeat=1),
        oom(on=layout(zero_stage=2)),
        measurement(micro_batch=4, tokens_per_s=None, outcome=Outcome.FAILED, reason=AWKWARD),
        skipped(on=layout(bucket_mib=3)),
    ]
    result = result_of(points)
    (of_recipe,) = result.of_study
    rows = measured_rows(of_recipe, result.header)
    columns = on_terminal(result.header, [*rows.timed, *rows.failed], fixed=())
    timed, failed, runs, *_ = tables_of(as_markdown(result))
    assert timed == [[column.flat for column in columns], *Table(columns=columns, rows=rows.timed).texts]
    assert [row[-1] for row in failed[1:]] and any(" ".join(AWKWARD.split()) in row for row in failed)
    assert len(runs) == 2 and runs[1][-2] == "42,000"
    assert all(len(row) == len(table[0]) for table in tables_of(as_markdown(result)) for row in table)


def test_the_command_prints_it_alone(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(studies, "one", "--markdown") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# one\n") and "## Result" in printed and "Files:" not in printed
    assert run(studies, "one", "two", "--markdown") == 0
    assert re.findall("^# (.*)$", capsys.readouterr().out, flags=re.MULTILINE) == ["one", "two"]


@pytest.mark.parametrize("other", [["--json"], ["--compare", "one", "two"]])
def test_one_form_at_a_time(studies: Path, other: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    names = [] if "--compare" in other else ["one"]
    assert run(studies, *names, "--markdown", *other) == 2
    assert "--markdown" in capsys.readouterr().err


def test_a_plan_has_a_row_for_each_layout(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(["gpt2", "--cluster", "8xH100", "--top", "3", "--markdown"]) == 0
    printed = capsys.readouterr().out
    (titles, *rows), *_ = tables_of(printed)
    assert titles[:2] == ["layout", "batch"] and len(rows) == 3 and all(len(row) == len(titles) for row in rows)
    assert re.search(r"^- [\d,]+ skipped: ", printed, flags=re.MULTILINE)
    assert escaped("points looked at") in printed
    assert plan(["gpt2", "--cluster", "8xH100", "--markdown", "--json"]) == 2
