"""`python -m platform.validate`: figures by hand, rows that are left out, bad input."""

import csv
import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import leave_one_table_out
from platform.common.errors import InputError
from platform.cost_model import stacks
from platform.cost_model.columns import from_rows
from platform.cost_model.engines import ENGINES
from platform.cost_model.host import LAUNCH_S
from platform.cost_model.kernels import HOPPER_RATE
from platform.cost_model.memory import outside_gib
from platform.cost_model.predict import predict
from platform.validate.__main__ import main
from platform.validate.evaluation import merged, score_table
from platform.validate.published_run import PublishedRun, interpret
from platform.validate.rows import NEEDED, read_rows
from platform.validate.validation import validate
from tests.cost_model.points import PRINTED_ROW, TABLES

MEASUREMENTS = Path(__file__).parents[2] / "docs" / "measurements"
FLASH = {"strategy": "fsdp", "flash_attention": "yes"}
KEYS = {
    "rows_scored", "rows_left_out", "step_time_ape_median", "step_time_ape_mean", "memory_ape_median",
    "rank_correlation", "regret_median", "regret_mean", "oom_precision", "oom_recall", "interval_coverage",
    "interval_half_width_median", "near_best_ape_median", "oom_missed", "oom_false_alarms", "oom_first_choices",
}  # fmt: skip


def tr3m() -> list[PublishedRun]:
    return [interpret(row) for row in read_rows(TABLES / "tr3m_1b3.csv")]


def test_the_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(TABLES / "tr3m_1b3.csv"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"schema", "overall", "cells"}
    assert set(report["overall"]) == KEYS
    assert len(report["cells"]) == 2
    for cell in report["cells"]:
        assert set(cell) == KEYS | {"cell"}
    assert report["overall"]["rows_scored"] == 27
    assert report["overall"]["oom_recall"] == 1.0 and report["overall"]["oom_precision"] == 1.0


def test_what_has_nothing_to_score_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(TABLES / "megatron_ten_rows.csv"), "--json"]) == 0
    overall = json.loads(capsys.readouterr().out)["overall"]
    assert overall["memory_ape_median"] is None and overall["regret_mean"] is None and overall["oom_recall"] is None
    assert overall["step_time_ape_median"] is not None


@pytest.mark.parametrize("name", sorted(path.name for path in TABLES.glob("*.csv")))
def test_every_seed_table_is_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(TABLES / name)]) == 0
    assert "constant MFU" in capsys.readouterr().out
    assert main([str(TABLES / name), "--rows"]) == 0
    assert "predicted" in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["60", "80"])
def test_no_column_is_cut_off_on_a_narrow_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main([str(MEASUREMENTS / "gpt2_zero-1xH200.csv")]) == 0
    by_cell = capsys.readouterr().out.partition("By cell")[2]
    assert "80 %" in by_cell and "100 %" in by_cell and ("(75 %)" in by_cell) == (columns == "80")
    assert main([str(MEASUREMENTS / "gpt2_zero-1xH200.csv"), "--rows"]) == 0
    assert capsys.readouterr().out.count(" ok ") == 8


def test_the_row_that_was_left_empty_is_filled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checks the row of stage 1, accumulation 256, no checkpointing and 32 GPUs, whose days its author left empty."""
    monkeypatch.setenv("COLUMNS", "150")
    assert main([str(TABLES / "bloom_7b_jean_zay.csv"), "--rows"]) == 0
    output = capsys.readouterr().out
    (empty,) = [line for line in output.splitlines() if "zero1 dp32 2x256  " in line and "s2048" in line]
    assert " - " in empty and empty.rstrip().endswith("OOM 0 %")
    assert "contradicts itself: 147 days are 7870 tokens/s, its profiler says" in output.replace("\n", " ")


def test_rows_name_their_degrees(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    assert main([str(MEASUREMENTS / "llama_1b-4xH200.csv"), "--rows"]) == 0
    labels = {line.split("  ")[0] for line in capsys.readouterr().out.splitlines()}
    assert labels >= {"ddp dp4 4x4", "ddp tp2 cp2 4x16", "ddp tp2 pp2 4x16", "ddp cp4 4x16", "ddp cp2 dp2 4x8"}


@pytest.mark.parametrize("path", sorted(MEASUREMENTS.glob("*H[12]00.csv")), ids=lambda path: path.stem)
def test_rows_are_told_by_what_differs(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checks that no two rows have one name, by which they could not be distinguished; values that all rows share stand
    once, above them.
    """
    monkeypatch.setenv("COLUMNS", "200")
    assert main([str(path), "--rows"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split("  ")[0] for line in lines if re.search(r" (ok|OOM|open) \d+ %$", line.rstrip())]
    assert rows and len(set(rows)) == len(rows)
    text = "".join(lines)
    assert (
        len(rows) == 1
        or ("1024" in text) + ("2048" in text) + any(f"s{seq_len}" in lines[0] for seq_len in (128, 4096, 8192)) == 1
    )


def test_a_table_as_a_spreadsheet_writes_it(tmp_path: Path) -> None:
    """Reads a table with a byte order mark before a required column, other line ends and words of any case."""
    plain = read_rows(TABLES / "tr3m_1b3.csv")
    names = ["model", *(name for name in plain[0] if name != "model")]
    path = tmp_path / "excel.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({**row, "status": row["status"].upper(), "strategy": row["strategy"].upper()} for row in plain)
    assert read_rows(path) == plain


def _table(tmp_path: Path, **changes: str) -> Path:
    row = {**PRINTED_ROW, **changes}
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)
    return path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layers": ""}, "layers not stated"),
        ({"gpu": "A90"}, "unknown device 'A90': near names are .*A100"),
        ({"tp": "3"}, "tp 3 x pp 1 x cp 1 x dp 32 is not 32 GPUs"),
        ({"global_batch": "500"}, "is not global_batch 500"),
        ({"micro_batch": "x"}, "micro_batch is 'x', not a number"),
        ({"strategy": "zero9"}, "strategy 'zero9' is not one of"),
        ({"notes": "nothing"}, "neither time, memory nor OOM printed"),
        ({"experts": "8"}, "top_k not stated"),
        ({"experts": "8", "top_k": "2", "moe_layers": "12"}, "12 of 24 blocks have experts"),
        ({"experts": "8", "top_k": "2", "ffn": "", "params_b": ""}, "neither moe_ffn nor params_b stated"),
        ({"experts": "8", "top_k": "2", "ep": "4"}, "expert parallelism of other software is not modelled"),
        ({"params_b": "40"}, "1.65B parameters by its shape, 40B stated"),
        ({"status": "error"}, "status error"),
        ({"status": "", "outcome": "skipped"}, "status skipped"),
        ({"hidden": "1e400"}, "hidden is '1e400', not a number from 0 to 1e.09"),
        ({"layers": "nan"}, "layers is 'nan', not a number from 0"),
        ({"heads": "0.5"}, "heads is 0.5, not a whole number"),
        ({"iter_time_s": "-1"}, "iter_time_s is '-1', not a number from 0"),
        ({"gpu_mem_gb": "9" * 5000}, r"gpu_mem_gb is '9{40}\.\.\.', not a number from 0"),
        (
            {"gpus": "64", "nodes": "8", "pp": "64", "dp": "1", "global_batch": "16"},
            "pp 64 cuts 24 blocks into more stages",
        ),
        ({"gpus": "64", "pp": "2", "dp": "32", "tp": "1", "vp": "24"}, "vp 24 cuts 24 blocks of 2 stages finer"),
    ],
)
def test_rows_that_cannot_be_interpreted_say_why(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    (row,) = read_rows(_table(tmp_path, **changes))
    with pytest.raises(ValueError, match=reason):
        interpret(row)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"notes": "CUDA_LAUNCH_BLOCKING=1"}, "blocking", 1.0),
        ({"notes": "DGX A100"}, "blocking", 0.0),
        ({"source": "BigScience", "notes": "Megatron+DeepSpeed, DS=N"}, "engine", ENGINES.index("megatron")),
        ({"source": "BigScience", "notes": "Megatron+DeepSpeed, DS=Y"}, "engine", ENGINES.index("deepspeed")),
        ({"notes": "PyTorch eager"}, "fused", 0.0),
        ({"notes": "torch.compile no"}, "fused", 0.0),
        ({"notes": "offloads the optimizer states"}, "states_on_host", 1.0),
        ({"notes": "CPU offload: no"}, "states_on_host", 0.0),
        ({"precision": "float8", "gpu": "H100"}, "cast_bytes", 5.0),
        ({"precision": "bf16", "matmul_precision": "mxfp8", "gpu": "H100"}, "cast_bytes", 5.0),
        ({"node_gbps": "400"}, "inter_bandwidth", 50e9 * 0.8),
        ({"link_gbs": "150"}, "intra_bandwidth", 150e9 * 235 / 300),
        ({"link_gbs": "150", "notes": "config files give intra 150 GB/s"}, "intra_bandwidth", 235e9),
        ({"software": "nanotron"}, "reduces_by_hooks", 1.0),
        ({"software": "megatron-lm"}, "reduces_by_hooks", 0.0),
        ({"software": "nanotron", "strategy": "zero1", "zero_group": "8"}, "shard", 8.0),
        ({"software": "nanotron"}, "block_host", 0.0014),
        ({"software": "megatron-lm", "tp": "8", "dp": "4", "grad_accum": "8"}, "block_host", 0.0012),
        ({"software": "llm-foundry"}, "block_host", 0.0),
        ({"software": "megatron-core", "tp": "8", "dp": "4", "grad_accum": "8"}, "sequence_parallel", 1.0),
        ({"software": "megatron-lm", "tp": "8", "dp": "4", "grad_accum": "8"}, "sequence_parallel", 0.0),
        ({"software": "megatron-core", "tp_overlap": "yes"}, "tensor_overlap", 0.5),
        ({"notes": "without torch.compile"}, "fused", 0.0),
        # Of each of eight parts of the loss, 8 bytes a logit; of 2,304 values beside 51,200 logits, 6 bytes each.
        ({"source": "torchtitan", **FLASH}, "logit_bytes", 8.0 / 8 + 6 * 2304 / 51_200),
        ({"source": "torchtitan", **FLASH}, "loss_moved", 16.0),
        ({"source": "torchtitan, May 2025", **FLASH}, "logit_bytes", 8.0),
        ({"source": "torchtitan 2025", **FLASH, "notes": "PyTorch eager"}, "logit_bytes", 14.0),
        ({"source": "torchtitan, December 2024", **FLASH}, "logit_bytes", 14.0),
        ({"strategy": "fsdp", "flash_attention": "yes"}, "logit_bytes", 8.0),
        ({"source": "llm-foundry", "strategy": "fsdp", "flash_attention": "yes"}, "logit_bytes", 4.0),
        ({"source": "llm-foundry", "strategy": "fsdp"}, "metric_losses", 2.0),
        ({"source": "torchtitan", "strategy": "fsdp"}, "metric_losses", 0.0),
        ({"strategy": "fsdp", "cp": "4", "dp": "8", "grad_accum": "4"}, "shard", 32.0),
        ({"source": "torchtitan", "strategy": "fsdp", "activation_ckpt": "selective"}, "checkpoint_device_share", 0.5),
        # 24 blocks of 12 h^2 and a table of 51,200 words: the table's two moments stay in fp32.
        ({"notes": "8-bit optimizer"}, "moments", 0.5 + 1.5 * 0.0737),
    ],
)
def test_what_a_row_s_words_say(tmp_path: Path, changes: dict[str, str], field: str, value: float) -> None:
    (row,) = read_rows(_table(tmp_path, **{"iter_time_s": "3", **changes}))
    assert interpret(row).values[field] == pytest.approx(value, rel=0.01)


def test_a_stack_without_its_table_has_its_host_time_by_the_count_of_its_kernels(tmp_path: Path) -> None:
    """Checks that the measured time is near the counted one: 1.4 ms of 20 kernels and 13 that are not fused."""
    (row,) = read_rows(_table(tmp_path, software="nanotron", iter_time_s="3"))
    measured = interpret(row).values["block_host"]
    with stacks.without("nanotron_h100_3b.csv"):
        counted = interpret(row).values["block_host"]
        fused = interpret({**row, "fused": "rope;mlp"}).values["block_host"]
    assert counted == pytest.approx(measured, rel=0.1) and counted != measured
    assert fused == pytest.approx(20 / 33 * counted)


def test_gradients_reduced_by_hooks_hide_behind_a_long_backward_pass_and_those_of_zero_do_not(tmp_path: Path) -> None:
    def data_s(strategy: str, micro_batch: int, software: str, dp: int = 32) -> float:
        changes = {
            "software": software, "strategy": strategy, "micro_batch": f"{micro_batch}", "dp": f"{dp}",
            "gpus": f"{dp}", "nodes": f"{dp // 8}", "grad_accum": f"{16 // micro_batch}",
            "global_batch": f"{dp * 16}", "iter_time_s": "3", "notes": "", "node_gbps": "100",
        }  # fmt: skip
        (row,) = read_rows(_table(tmp_path, **changes))
        return float(predict(from_rows([interpret(row).values])).step.data_s[0])

    assert data_s("ddp", 16, "nanotron") < 0.7 * data_s("ddp", 1, "nanotron")
    assert data_s("ddp", 16, "megatron-lm") == pytest.approx(data_s("ddp", 1, "megatron-lm"))
    assert data_s("zero1", 16, "nanotron") > 1.5 * data_s("ddp", 16, "nanotron")
    assert data_s("zero1", 16, "nanotron") == pytest.approx(data_s("zero1", 1, "nanotron"))
    # Each rank's part of 6 tensors in each of 24 blocks is copied by itself.
    copies = (256 - 32) * 6 * 24 * LAUNCH_S
    assert data_s("zero1", 16, "nanotron", 256) - data_s("zero1", 16, "nanotron") == pytest.approx(copies, rel=0.5)


def test_a_row_without_checkpointing_is_taken_for_the_least_that_fits(tmp_path: Path) -> None:
    """Checks a row on 80 GB that does not state its checkpointing: it is read as none where that fits, else as full."""
    (row,) = read_rows(_table(tmp_path, activation_ckpt="", iter_time_s="3", notes=""))
    run = interpret(row)
    assert any("activation_ckpt not stated" in assumption for assumption in run.assumed)
    least = {"activation_ckpt": "none"} if run.values["full_checkpointing"] == 0 else {"activation_ckpt": "full"}
    assert interpret({**row, **least}).values == run.values
    with pytest.raises(ValueError, match="activation_ckpt not stated"):
        interpret({**row, "status": "oom"})


def test_rows_of_other_kernels_are_not_merged(tmp_path: Path) -> None:
    (row,) = read_rows(_table(tmp_path, iter_time_s="3", notes=""))
    runs = [interpret({**row, "attention_kernel": kernel}) for kernel in ("fused_softmax", "eager", "eager")]
    assert sorted(run.num_merged for run in merged(runs)) == [1, 2]
    others = {"compile": "block", "matmul_precision": "fp16", "zero_group": "8", "fused": "norm", "offload": "all"}
    assert len(merged([interpret({**row, name: value}) for name, value in others.items()])) == len(others)


def test_a_row_of_our_own_is_read_by_its_engine_and_cap(tmp_path: Path) -> None:
    own_rows = {"engine": "fsdp", "strategy": "zero2", "grad_sync": "every", "attention": "sdpa", "compile": "block"}
    own_rows |= {
        "cap_gib": "10",
        "peak_mem_gb": "10.73741824",
        "outcome": "ok",
        "gpu": "NVIDIA H200",
        "flash_attention": "",
    }
    (row,) = read_rows(_table(tmp_path, **own_rows))
    run = interpret(row)
    assert run.values["zero_stage"] == 2 and run.values["flash"] == HOPPER_RATE["sdpa"] and run.values["fused"] == 1
    assert run.peak_kind == "allocated" and run.peak_memory_gib == pytest.approx(10.0)
    assert 10 < run.values["capacity_gib"] < 12


def test_a_printed_peak_is_compared_by_what_it_counts(tmp_path: Path) -> None:
    """Checks that nanotron's peak is the allocator's reserved memory, without the context that nvidia-smi shows, and of
    the first stage, though here the last one holds most: its logits.
    """
    changes = {"pp": "2", "dp": "16", "micro_batch": "16", "grad_accum": "2", "activation_ckpt": "full"}
    (row,) = read_rows(_table(tmp_path, software="nanotron", peak_mem_gb="55", iter_time_s="3", **changes))
    run = interpret(row)
    memory = predict(from_rows([run.values])).memory
    assert memory.binding_rank == 2
    assert run.peak_kind == "reserved" and run.allocated_gib == pytest.approx(50.0)
    assert score_table([run]).predicted_gib == pytest.approx(memory.first_device_gib - outside_gib(run.values))
    device = dataclasses.replace(run, peak_kind="device")
    assert device.allocated_gib is None
    assert score_table([device]).predicted_gib == pytest.approx(memory.first_device_gib)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot read table"),
        ("a,b\n1,2\n", "lacks the columns model, layers"),
        ("model;layers\ngpt2;12\n", "parts its columns by ';': save it with commas"),
        ("model\tlayers\ngpt2\t12\n", r"parts its columns by '\t': save it with commas"),
        ("model,tp,tp\nx,1,2\n", "has the columns tp more than once"),
        (f"{','.join(NEEDED)}\n{',' * (len(NEEDED) - 1)}\n{'1,' * len(NEEDED)}5\n", "line 3 of table"),
    ],
)
def test_bad_tables_are_one_sentence_and_exit_2(
    tmp_path: Path, content: str | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    if content is not None:
        path.write_text(content)
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_a_table_without_a_usable_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of 1 rows can be scored: layers not stated"):
        validate(read_rows(_table(tmp_path, layers="")))


def test_leaving_one_table_out_tells_its_usage_and_a_wrong_path_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv, exit_code in (
        ("--help", 0),
        ("nothing.csv", "error: cannot read table: nothing.csv cannot be read: there is no such file"),
    ):
        monkeypatch.setattr(sys, "argv", ["leave_one_table_out", argv])
        with pytest.raises(SystemExit) as exit_info:
            leave_one_table_out.main()
        assert exit_info.value.code == exit_code
    assert "usage: leave_one_table_out" in capsys.readouterr().out


def test_a_blank_activation_ckpt_is_the_least_recomputation_that_fits(tmp_path: Path) -> None:
    (row,) = read_rows(_table(tmp_path, activation_ckpt=""))
    run = interpret(row)
    assert run.layout["checkpointing"] in ("none", "selective", "full")
    assert any("activation_ckpt not stated" in assumption for assumption in run.assumed)
    (small,) = read_rows(_table(tmp_path, activation_ckpt="", micro_batch="1", grad_accum="", seq_len="512"))
    order = ("none", "selective", "full")
    assert order.index(str(interpret(small).layout["checkpointing"])) < order.index(str(run.layout["checkpointing"]))


def test_where_calibration_leaves_nothing_to_score_the_reason_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(_table(tmp_path)), "--calibrate", "3"]) == 2
    error = capsys.readouterr().err
    assert "nothing is left to score: 3 configurations are measured in each cell, and the largest has 1" in error
    assert error.count("\n") == 1
