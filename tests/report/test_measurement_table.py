"""The CSV table: its header, the meaning of cells, and reading it back."""

from pathlib import Path

import pytest

from platform.common.errors import InputError
from platform.report.measurement_table import HEADER, NUM_PUBLISHED, TableRow, read_csv, strategy, to_rows, write_csv
from tests.samples import CLUSTER, RECIPE, layout, measurement, miniature, oom, skipped
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.layout import Layout

PUBLISHED = (
    "source,url_or_repo_path,model,params_b,layers,hidden,heads,kv_heads,ffn,vocab,seq_len,gpu,gpu_mem_gb,nodes,gpus,"
    "tp,pp,cp,dp,strategy,micro_batch,grad_accum,global_batch,activation_ckpt,precision,flash_attention,iter_time_s,"
    "tokens_per_s_per_gpu,tflops_per_gpu,mfu,hfu,peak_mem_gb,status,vp,ep,seq_parallel,derived,notes"
)
OWN_COLUMNS = (
    "recipe,engine,optimizer,state_precision,grad_sync,offload,attention,loss,compile,compression,cap_gib,outcome,"
    "peak_reserved_gib,layout_id,compile_s"
)
DOC = Path(__file__).parents[2] / "docs" / "reference" / "columns.md"


def _rows(*measurements: Measurement) -> list[TableRow]:
    return to_rows(measurements, cluster=CLUSTER, source="study made-up", path="journal.jsonl")


def test_the_header_is_the_published_one_with_the_projects_own_after_it() -> None:
    assert ",".join(HEADER) == f"{PUBLISHED},{OWN_COLUMNS}"
    assert HEADER[NUM_PUBLISHED] == "recipe"


def test_every_column_is_documented_in_order() -> None:
    own_columns, _, _ = DOC.read_text().partition("\n## What ran, in tables of others\n")
    documented = [line.split("`")[1] for line in own_columns.splitlines() if line.startswith("| `")]
    assert documented == list(HEADER)


def test_rows_come_back_as_they_were_and_layouts_stay_distinct(tmp_path: Path) -> None:
    layouts = [
        layout(),
        layout(zero_stage=2),
        layout(grad_sync="every"),
        layout(prefetch=2),
        layout(bucket_mib=25),
        layout(dp_shard=2, dp_replicate=2),
        Layout(engine="ddp", dp_replicate=4),
        Layout(engine="deepspeed", dp_replicate=4),
    ]
    measurements = [measurement(on=tried_layout, tokens_per_s=40000 / 3) for tried_layout in layouts] + [
        oom(),
        skipped(),
    ]
    rows = _rows(*measurements)
    path = tmp_path / "table.csv"
    write_csv(path, rows)
    assert read_csv(path) == rows
    assert len({row.layout_id for row in rows[: len(layouts)]}) == len(layouts)


def test_what_the_cells_of_a_measurement_say() -> None:
    (row,) = _rows(measurement(micro_batch=2, step_time_derived=True, cap_gib=70.0, compile_s=12.5))
    assert row.params_b == pytest.approx(7.069016064)
    assert (row.gpus, row.dp, row.strategy, row.engine) == (4, 4, "fsdp", "fsdp")
    assert (row.micro_batch, row.grad_accum, row.global_batch) == (2, 64, 512)
    assert row.iter_time_s == pytest.approx(512 * 2048 / 40000)
    assert row.tokens_per_s_per_gpu == 10000
    assert row.mfu == pytest.approx(100 * (row.tflops_per_gpu or 0) / 990)
    assert row.peak_mem_gb == pytest.approx(61.25 * 1.073741824)
    assert (row.status, row.outcome, row.cap_gib, row.peak_reserved_gib) == ("ok", "ok", 70.0, 66.5)
    assert row.derived == "iter_time_s;tokens_per_s_per_gpu;tflops_per_gpu;mfu;hfu"
    assert row.compile_s == 12.5


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("ok", "ok"), ("thrash", "ok"), ("slow", "ok"), ("oom", "oom"), ("diverged", "error"), ("hung", "error"),
     ("failed", "error"), ("skipped", None)],
)  # fmt: skip
def test_outcomes_in_the_published_words(outcome: str, status: str | None) -> None:
    (row,) = _rows(measurement(outcome=Outcome(outcome)))
    assert (row.status, row.outcome) == (status, outcome)


@pytest.mark.parametrize(
    ("on", "word"),
    [
        (Layout(engine="ddp", dp_replicate=4), "ddp"),
        (Layout(engine="deepspeed", dp_replicate=4), "ddp"),
        (Layout(engine="deepspeed", zero_stage=1, dp_shard=4), "zero1"),
        (Layout(engine="deepspeed", zero_stage=3, dp_shard=4, grad_sync="every"), "zero3"),
        (layout(), "fsdp"),
        (layout(zero_stage=2), "zero2"),
        (layout(dp_replicate=2, dp_shard=2), "hsdp"),
    ],
)
def test_strategy_says_what_is_sharded(on: Layout, word: str) -> None:
    assert strategy(on) == word


def test_a_miniature_says_so_in_its_row() -> None:
    (row,) = _rows(measurement(recipe=miniature(), on=Layout(engine="ddp", dp_replicate=2)))
    assert "miniature of bloom-7b1" in (row.notes or "")


def test_reasons_stay_on_one_line() -> None:
    (row,) = _rows(oom(reason="first\nsecond,  third"))
    assert row.notes == "first second, third"


def test_a_published_table_without_our_columns_is_read(tmp_path: Path) -> None:
    path = tmp_path / "published.csv"
    names = PUBLISHED.split(",")
    cells = {"source": "a paper", "layers": "30", "iter_time_s": "1.5", "notes": "twice, as printed"}
    path.write_text(PUBLISHED + "\n" + ",".join(f'"{cells.get(name, "")}"' for name in names) + "\n")
    (row,) = read_csv(path)
    assert (row.source, row.layers, row.iter_time_s, row.tp, row.recipe) == ("a paper", 30, 1.5, None, None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "lacks source"),
        (PUBLISHED.replace("layers,", "") + "\n", "lacks layers"),
        (PUBLISHED + ",mood\n", "has unknown mood"),
        (PUBLISHED + ",recipe,recipe\n", "repeats recipe"),
        (PUBLISHED + "\na,b\n", "row 2 .* has 2 cells"),
        (PUBLISHED + "\n" + "," * 4 + "many" + "," * 33 + "\n", "layers in row 2 .* 'many'"),
        (PUBLISHED + "\n" + "," * 4 + "1.5" + "," * 33 + "\n", "layers in row 2 .* '1.5'"),
        (PUBLISHED + "\n" + "," * 26 + "nan" + "," * 11 + "\n", "iter_time_s in row 2 .* 'nan'"),
    ],
)
def test_what_is_not_a_table_is_said_in_one_sentence(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=reason) as caught:
        read_csv(path)
    assert "\n" not in str(caught.value)


def test_tables_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_csv(tmp_path / "none.csv")
    with pytest.raises(InputError, match="cannot be written"):
        write_csv(tmp_path / "no" / "folder.csv", [])
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not CSV in UTF-8"):
        read_csv(tmp_path / "binary.csv")


def test_figures_that_are_not_finite_are_left_blank(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_csv(path, _rows(measurement(step_time_s=float("nan"))))
    (row,) = read_csv(path)
    assert row.iter_time_s is None and row.model == RECIPE.model.name
