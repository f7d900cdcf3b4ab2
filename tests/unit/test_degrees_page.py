"""The table of docs/parallelism.md is what the engines' rules accept today."""

from scripts.degrees_table import BEGIN, END, PAGE, SPLIT_BY, Refusals, axis_values, runs_beside, table, written
from trainers import architectures


def _rows() -> dict[str, list[str]]:
    lines = [line for line in table().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name.strip("`"): rest for name, *rest in cells}


def test_the_page_is_what_rules_accept() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "the table is out of date: python -m scripts.degrees_table writes it"
    assert written(f"before {BEGIN} an old table {END} after") == f"before {BEGIN}\n\n{table()}\n\n{END} after"


def test_there_is_a_column_an_architecture_and_a_sentence_for_what_is_missing() -> None:
    rows = _rows()
    assert tuple(rows["beside it"]) == architectures.names()
    without_tp = {name for name in architectures.names() if architectures.architecture_of(name).tensor_parallel_refusal}
    for row, wanted in (
        ("schedule=interleaved", "tp, pp, cp"),
        ("pp=2", "tp, cp"),
        ("micro-batches a step=1", "tp, cp"),
    ):
        for name, found in zip(architectures.names(), rows[row], strict=True):
            assert found == (wanted.removeprefix("tp, ") if name in without_tp else wanted), f"{row} of {name}"
    assert without_tp and not any(
        "tp" in rows[row][architectures.names().index(name)] for name in without_tp for row in rows
    )
    assert "got grad_sync every: choose last" in table()
    assert "cp" not in rows["attention=eager"][0].split(", ")
    assert "got cp 2: choose attention flex or sdpa" in table()


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
