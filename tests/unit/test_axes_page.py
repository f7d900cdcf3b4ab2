"""The table of axes in docs/search.md is what their declarations and the engines' rules say today."""

from scripts.axes_table import BEGIN, END, PAGE, table, written
from trainers.values.axes import axes_of
from trainers.values.layout import Layout
from trainers.values.recipe import Recipe


def _rows() -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table().splitlines()[2:]]
    return {name.strip("`"): rest for name, *rest in cells}


def test_the_page_is_what_is_declared():
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "the table of axes is out of date: python -m scripts.axes_table writes it"


def test_a_drifted_page_is_written_anew():
    drifted = f"before {BEGIN} an old table {END} after"
    assert written(drifted) == f"before {BEGIN}\n\n{table()}\n\n{END} after"


def test_every_axis_has_a_row_that_says_what_it_is():
    rows = _rows()
    assert list(rows) == [*axes_of(Layout), *axes_of(Recipe)]
    assert [name for name, (*_, about) in rows.items() if not about.endswith(".")] == []


def test_engines_are_those_whose_rules_accept_another_value():
    rows = _rows()
    assert rows["reshard"][2] == "fsdp at 3"
    assert rows["compression"][2] == "ddp"
    assert rows["pp"][2] == "ddp; fsdp"
    assert rows["attention"][2] == ""
