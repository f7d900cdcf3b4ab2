"""The table of docs/parallelism.md is what the engines' rules accept today."""

from scripts.degrees_table import BEGIN, END, PAGE, SPLIT_BY, Refusals, axis_values, cells, runs_beside, table, written
from trainers import architectures


def _rows() -> dict[str, dict[str, str]]:
    return {label.strip("`"): row for label, row in cells()[0].items()}


def test_the_page_is_what_rules_accept() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "the table is out of date: python -m scripts.degrees_table writes it"
    assert written(f"before {BEGIN} an old table {END} after") == f"before {BEGIN}\n\n{table()}\n\n{END} after"


def test_every_architecture_has_a_cell_in_each_row_and_what_is_missing_a_sentence() -> None:
    rows = _rows()
    assert all(tuple(row) == architectures.names() for row in rows.values())
    without_tp = {name for name in architectures.names() if architectures.architecture_of(name).tensor_parallel_refusal}
    for row, wanted in (
        ("schedule=interleaved", "tp, pp, cp"),
        ("pp=2", "tp, cp"),
        ("micro-batches a step=1", "tp, cp"),
    ):
        for name, found in rows[row].items():
            assert found == (wanted.removeprefix("tp, ") if name in without_tp else wanted), f"{row} of {name}"
    assert without_tp and not any("tp" in rows[row][name] for name in without_tp for row in rows)
    assert "got grad_sync every: choose last" in table()
    assert "cp" not in rows["attention=eager"]["bloom"].split(", ")
    assert "got cp 2: choose attention flex or sdpa" in table()


def test_the_shown_table_has_every_value_and_architecture_once() -> None:
    header, _, *lines = [line for line in table().splitlines() if line.startswith("|")]
    shown = [[cell.strip().split(", ") for cell in line.strip("|").split("|")] for line in (header, *lines)]
    columns, rows = shown[0][1:], shown[1:]
    assert sorted(name for names in columns for name in names) == sorted(architectures.names())
    assert sorted(label for row in rows for label in row[0]) == sorted(cells()[0])
    for labels, *row in rows:
        for names, cell in zip(columns, row, strict=True):
            assert {cells()[0][label][name] for label in labels for name in names} == {", ".join(cell)}


def test_every_degree_that_is_missing_has_a_reason() -> None:
    """But in a degree's row its name, which would say nothing."""
    for axis, value in axis_values():
        for degree in SPLIT_BY:
            reasons: Refusals = {}
            ran = runs_beside("llama", degree, axis, value, reasons)
            assert ran or reasons or axis == degree, f"{degree} beside {axis}={value}"


def test_kernels_compile_checkpointing_precision_offload_and_accumulation_have_rows() -> None:
    shown = {name.partition("=")[0] for name in _rows()}
    wanted = {"attention", "loss", "compile", "checkpointing", "compute_precision", "state_precision", "offload"}
    assert wanted | {"micro-batches a step", "compression", "schedule", "dp_shard", "dp_replicate"} <= shown
