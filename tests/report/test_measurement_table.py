"""The CSV table: its header, and the meaning of cells."""

from pathlib import Path

import pytest

from platform.common.errors import InputError
from platform.report.measurement_table import HEADER, strategy, write_table
from tests.samples import RECIPE, csv_rows, layout, measurement, miniature, oom, result_of, skipped
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.layout import Layout

PUBLISHED = (
    "source,url_or_repo_path,model,params_b,layers,hidden,heads,kv_heads,ffn,vocab,seq_len,gpu,gpu_mem_gb,nodes,gpus,"
    "tp,pp,cp,dp,strategy,micro_batch,grad_accum,global_batch,activation_ckpt,precision,flash_attention,iter_time_s,"
    "tokens_per_s_per_gpu,tflops_per_gpu,mfu,hfu,peak_mem_gb,status,vp,ep,seq_parallel,derived,notes"
)
OWN_COLUMNS = (
    "recipe,engine,optimizer,state_precision,grad_sync,offload,attention,loss,compile,compression,cap_gib,outcome,"
    "peak_reserved_gib,layout_id,compile_s,experts,top_k,shared_ffn,adapter,lora_targets,head_dim,window,window_layers"
    ",architecture,peak_host_gib"
)
DOC = Path(__file__).parents[2] / "docs" / "reference" / "columns.md"


def _rows(folder: Path, *measurements: Measurement) -> list[dict[str, str]]:
    write_table(folder / "table.csv", result_of(measurements), Path("journal.jsonl"))
    return csv_rows(folder / "table.csv")


def test_the_header_is_the_published_one_with_the_projects_own_after_it() -> None:
    assert ",".join(HEADER) == f"{PUBLISHED},{OWN_COLUMNS}"


def test_every_column_is_documented_in_order() -> None:
    own_columns, _, _ = DOC.read_text().partition("\n## What ran, in tables of others\n")
    documented = [line.split("`")[1] for line in own_columns.splitlines() if line.startswith("| `")]
    assert documented == list(HEADER)


def test_every_layout_has_a_row_of_its_own(tmp_path: Path) -> None:
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
    rows = _rows(
        tmp_path,
        *(measurement(on=on, tokens_per_s=40000 / 3) for on in layouts),
        oom(micro_batch=4),
        skipped(micro_batch=8),
    )
    assert [row["layout_id"] for row in rows[: len(layouts)]] == [on.id for on in layouts]
    assert {float(row["tokens_per_s_per_gpu"]) for row in rows[: len(layouts)]} == {10000 / 3}, "every digit"
    assert [row["outcome"] for row in rows[-2:]] == ["oom", "skipped"]


def test_what_the_cells_of_a_measurement_say(tmp_path: Path) -> None:
    (row,) = _rows(tmp_path, measurement(micro_batch=2, step_time_derived=True, cap_gib=70.0, compile_s=12.5))
    cells = {
        "source": "study made-up", "url_or_repo_path": "journal.jsonl", "gpus": "4", "dp": "4", "strategy": "fsdp",
        "engine": "fsdp", "micro_batch": "2", "grad_accum": "64", "global_batch": "512", "status": "ok",
        "outcome": "ok", "cap_gib": "70.0", "peak_reserved_gib": "66.5", "tokens_per_s_per_gpu": "10000.0",
        "derived": "iter_time_s;tokens_per_s_per_gpu;tflops_per_gpu;mfu;hfu", "compile_s": "12.5", "ep": "1",
    }  # fmt: skip
    assert {name: row[name] for name in cells} == cells
    figures = {
        "params_b": 7.069016064,
        "iter_time_s": 512 * 2048 / 40000,
        "mfu": 100 * float(row["tflops_per_gpu"]) / 990,
        "peak_mem_gb": 61.25 * 1.073741824,
    }
    assert {name: float(row[name]) for name in figures} == pytest.approx(figures)


def test_outcomes_in_the_published_words(tmp_path: Path) -> None:
    words = {
        "ok": "ok", "thrash": "ok", "slow": "ok", "oom": "oom", "diverged": "error", "hung": "error",
        "failed": "error", "skipped": "",
    }  # fmt: skip
    rows = _rows(tmp_path, *(measurement(micro_batch=2**n, outcome=Outcome(word)) for n, word in enumerate(words)))
    assert {row["outcome"]: row["status"] for row in rows} == words


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


def test_notes_say_what_has_no_column_on_one_line(tmp_path: Path) -> None:
    small = measurement(recipe=miniature(), on=Layout(engine="ddp", dp_replicate=2))
    rows = _rows(tmp_path, small, oom(reason="first\nsecond,  third"))
    assert [row["notes"] for row in rows] == ["miniature of bloom-7b1", "first second, third"]


def test_figures_that_are_not_finite_are_left_blank(tmp_path: Path) -> None:
    (row,) = _rows(tmp_path, measurement(step_time_s=float("nan")))
    assert (row["iter_time_s"], row["model"]) == ("", RECIPE.model.name)


def test_a_table_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_table(tmp_path / "no" / "folder.csv", result_of([]))
