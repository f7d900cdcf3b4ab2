"""`python -m benchmarks.passed_over`: the parts that it draws, and its lines."""

import pytest

from benchmarks import passed_over
from platform.searchers import guided
from tests.cost_model.points import TABLES

TABLE = TABLES / "tr3m_1b3.csv"


def test_parts_are_drawn_from_the_large_cells() -> None:
    drawn = list(passed_over.parts(TABLE, 4, seed=0))
    assert drawn and {part.name for part in drawn} <= {
        read_cell.name for read_cell in passed_over.read_cells([TABLE])[0]
    }
    assert all(2 <= len(part.choices) <= 0.7 * 17 for part in drawn)
    again = list(passed_over.parts(TABLE, 4, seed=0))
    assert [part.runs for part in drawn] == [part.runs for part in again]


def test_each_share_has_a_column_and_the_constant_stays(capsys: pytest.CaptureFixture[str]) -> None:
    usual = guided.PASSED_OVER
    passed_over.main([str(TABLE), "--parts", "1", "--share", "0.05,1"])
    head, table, total = capsys.readouterr().out.splitlines()
    assert head.split() == ["parts", "plain", "0.05", "1"]
    assert len(table.split()) == len(total.split()) == 5
    assert usual == guided.PASSED_OVER
