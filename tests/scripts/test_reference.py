"""The pages of docs/reference equal the present output of `make docs`, and have the promised content."""

import re
from pathlib import Path

import pytest

from scripts.pages import axes, degrees, measurements, options
from scripts.reference import FOLDER, PAGES, written
from trainers.spec import architectures
from trainers.spec.architectures.with_experts import WithExperts
from trainers.spec.axis import axes_of
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

ROOT = Path(__file__).parents[2]
BY_HAND = {"columns.md"}
"""Pages that no command writes; `tests/report/test_measurement_table.py` holds this one to the header."""


def _rows(table: str) -> dict[str, list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name.strip("`"): cells_of_row for name, *cells_of_row in cells}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_is_written_today(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert text == written(name), f"docs/reference/{name} has drifted: make docs writes it anew"


def test_every_page_is_written_or_known_to_be_written_by_hand() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*PAGES, *BY_HAND}


def test_every_command_has_its_options_on_the_page() -> None:
    paths = [path for folder in ("platform", "deploy") for path in (ROOT / folder).rglob("*.py")]
    having = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in paths
        if re.search(r"^PARSER = ", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert set(options.COMMANDS) == having
    commands = {path.stem for path in (ROOT / "platform").glob("[a-z]*.py")}
    assert commands <= {options.parser_of(name).prog.rpartition(".")[2] for name in options.COMMANDS}


def test_an_option_has_its_value_its_default_and_its_group() -> None:
    page = options.page()
    assert "| `--seed N` | seed of the searcher (default: 0) |" in page
    assert "| trials | |" in page
    assert "`--searcher guided\\|sweep" in page


def test_every_axis_has_a_row_that_says_what_it_is() -> None:
    for kind in (Layout, Recipe):
        rows = _rows(axes.table(kind))
        assert list(rows)[2:] == list(axes_of(kind))
        assert [name for name in axes_of(kind) if not rows[name][-1].endswith(".")] == []


def test_engines_are_those_whose_rules_accept_another_value() -> None:
    rows = _rows(axes.table(Layout)) | _rows(axes.table(Recipe))
    assert rows["reshard"][2] == "fsdp at 3"
    assert rows["compression"][2] == "ddp"
    assert rows["pp"][2] == "ddp; fsdp"
    assert rows["attention"][2] == ""


def _cells() -> dict[str, dict[str, str]]:
    """Returns the degrees by value and architecture, whose names share rows and columns where they agree."""
    (_, *heads), _, *rows = [line.strip("|").split("|") for line in degrees.table().splitlines() if line[:1] == "|"]
    cells = {
        value.strip(" `"): {
            name.strip(): cell.strip() for head, cell in zip(heads, row, strict=True) for name in head.split(",")
        }
        for values, *row in rows
        for value in values.split(",")
    }
    assert {tuple(sorted(cell_by_name)) for cell_by_name in cells.values()} == {tuple(sorted(architectures.names()))}
    return cells


def test_there_is_a_cell_for_each_architecture_and_a_sentence_for_what_is_missing() -> None:
    cells = _cells()
    without_tp = {name for name in architectures.names() if architectures.architecture_of(name).tensor_parallel_refusal}
    for row, expected in (
        ("schedule=interleaved", "tp, pp, cp"),
        ("pp=2", "tp, cp"),
        ("micro-batches a step=1", "tp, cp"),
    ):
        for name, shown_degrees in cells[row].items():
            degrees_there = expected.removeprefix("tp, ") if name in without_tp else expected
            if isinstance(architectures.architecture_of(name), WithExperts):
                degrees_there += ", ep"
            assert shown_degrees == degrees_there, f"{row} of {name}"
    assert without_tp and not any("tp" in row[name] for name in without_tp for row in cells.values())
    assert "got grad_sync every: choose last" in degrees.table()
    assert not any("cp" in degrees for degrees in cells["attention=eager"].values())
    assert "got cp 2: choose attention flex or sdpa" in degrees.table()


def test_every_degree_that_is_missing_has_a_reason() -> None:
    """Checks every degree beside every axis, except an axis beside itself, where a reason would say nothing."""
    for axis, value in degrees.axis_values():
        for degree in degrees.SPLIT_BY:
            reasons: degrees.Refusals = {}
            # One has biases and GELU, one has experts.
            family = {"mlp": "bloom", "experts": "mixtral", "ep": "mixtral"}.get(axis, "llama")
            ran = degrees.runs_beside(family, degree, axis, value, reasons)
            assert ran or reasons or axis == degree, f"{degree} beside {axis}={value}"


def test_kernels_compile_checkpointing_precision_offload_and_accumulation_have_rows() -> None:
    shown = {name.partition("=")[0] for name in _cells()}
    expected = {"attention", "loss", "compile", "checkpointing", "compute_precision", "state_precision", "offload"}
    assert expected | {"micro-batches a step", "compression", "schedule", "dp_shard", "dp_replicate"} <= shown


def test_every_table_of_measurements_has_a_row() -> None:
    page = measurements.page()
    tables = sorted(measurements.TABLES.glob("*.csv"))
    assert tables and [path.name for path in tables if f"[{path.stem}](" not in page] == []
