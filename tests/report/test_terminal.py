"""The terminal's table at three widths: nothing is wider than the terminal, and rows stay distinguishable."""

import dataclasses
import re
from typing import Any

import pytest

from platform.report.html.page import page
from platform.report.json_report import as_json
from platform.report.notes import skipped_lines
from platform.report.terminal import render
from tests.samples import RECIPE, layout, measurement, miniature, oom, result_of, skipped
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

MANY = (
    measurement(micro_batch=2, tokens_per_s=41000.0, step_time_derived=True),
    measurement(on=layout(checkpointing="full", prefetch=2), tokens_per_s=43000.0, micro_batch=8),
    measurement(on=layout(dp_shard=2, dp_replicate=2, grad_sync="every"), tokens_per_s=35000.0),
    measurement(
        on=Layout(engine="ddp", dp_replicate=4),
        tokens_per_s=45000.0,
        outcome=Outcome.THRASH,
        reason="3 allocator retries",
    ),
    oom(on=Layout(engine="deepspeed", zero_stage=3, dp_shard=4, grad_sync="every"), micro_batch=2),
    measurement(
        micro_batch=4, tokens_per_s=None, outcome=Outcome.FAILED, reason="NCCL\nsaid [bold]no[/bold]" + "!" * 300
    ),
    *(skipped(on=layout(bucket_mib=n + 1)) for n in range(9)),
)


def _render(*measurements: Measurement, width: int, color: bool = False) -> str:
    return render(result_of(measurements), width=width, color=color)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "and a weight decay of 0.1 takes every parameter, norms and biases too."),
        ({"decay": "matrices"}, "and a weight decay of 0.1 takes matrices alone, embeddings among them."),
        ({"weight_decay": 0.0}, "and nothing decays."),
    ],
)
def test_every_report_says_that_there_is_no_dropout_and_what_decays(fields: dict[str, Any], words: str) -> None:
    recipe = dataclasses.replace(RECIPE, **fields)
    result = result_of([measurement(recipe=recipe)])
    sentence = f"There is no dropout, {words}"
    assert sentence in render(result, width=120) and sentence in page([result])
    stated = as_json(result)["recipe"]
    assert (stated["dropout"], stated["decay"]) == (0.0, recipe.decay)
    assert (recipe.id == RECIPE.id) == (not fields)


@pytest.mark.parametrize("width", [80, 120, 160, 200])
def test_it_fits_and_says_what_matters(width: int) -> None:
    text = _render(*MANY, width=width)
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= width
    flat = " ".join(text.split())
    for words in ("43,000", "41,000~", "35,000", "ok *", "thrash", "oom", "failed", "asked 4.00 GiB", "61.2", "26.9"):
        assert words in flat, f"{words} at {width}"
    for words in (
        "thrash, 3 allocator retries (1.05 times as fast as the winner in one run, not resolved)",
        "said [bold]no[/bold]",
        "Skipped: 9 batch points of 9 layouts.",
        "prefetch 2",
        "~ derived",
    ):
        assert words in flat, f"{words} at {width}"
    assert text.index("43,000") < text.index("41,000~") < text.index("35,000") < text.index("45,000")
    assert text.index("45,000") < text.index("asked")


def test_a_memory_cap_stands_beside_the_devices() -> None:
    capped = [dataclasses.replace(point, cap_gib=39.4) for point in MANY]
    assert " GiB, held to 39.4)" in _render(*capped, width=200)
    assert "held to" not in _render(*MANY, width=200)


def test_wide_has_every_column() -> None:
    text = _render(*MANY, width=220)
    for title in (
        "GPUs", "engine", "sharding", "degrees", "precision", "checkp.", "seq.", "MBS", "GAS", "batch", "step",
        "tokens", "tokens/s", "±%", "TFLOP/s", "peak", "util.", "GiB", "days", "outcome",
    ):  # fmt: skip
        assert title in text, title
    assert "Left out" not in text
    for cell in ("hybrid full", "dp 2x2", "ZeRO-3", "deepspeed", "bf16", "2048", "512", "97.5", "1.0"):
        assert cell in text, cell


def test_narrow_says_what_it_left_out() -> None:
    text = _render(*MANY, width=80)
    assert "Left out at this width: " in text
    assert "In every row: GPUs 4, precision bf16, seq. 2048, global batch 512" in text


@pytest.mark.parametrize("width", [80, 120, 200])
def test_layouts_that_differ_look_different(width: int) -> None:
    on = [layout(), layout(prefetch=1), layout(attention="sdpa"), layout(zero_stage=2), layout(bucket_mib=25)]
    text = _render(*(measurement(on=shown_layout, tokens_per_s=1000.0) for shown_layout in on), width=width)
    flat = " ".join(text.split())
    for word in ("prefetch 1", "sdpa", "buckets 25 MiB"):
        assert word in flat, word
    assert "grad+opt" in flat or "stage 2" in flat


AGAIN = (
    *(measurement(tokens_per_s=speed, repeat=n) for n, speed in enumerate((43000.0, 41000.0, 41100.0, 41300.0))),
    measurement(tokens_per_s=41200.0, repeat=4, measured_grad_accum=128),
    *(measurement(on=layout(prefetch=2), tokens_per_s=speed, repeat=n) for n, speed in enumerate((42000.0, 40000.0))),
    measurement(on=layout(prefetch=3), tokens_per_s=39000.0),
    measurement(on=layout(prefetch=4), tokens_per_s=38000.0),
    oom(on=layout(prefetch=4), repeat=1),
)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_point_has_one_row_and_its_runs_a_table_of_their_own(width: int) -> None:
    text = _render(*AGAIN, width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    points, runs = text.split("Run again in fresh processes")
    for figure in ("43,000", "41,000", "41,100", "41,300", "41,200", "42,000", "40,000", "38,000", "oom"):
        assert figure in runs, figure
    assert "39,000" not in runs, "it was run once"
    assert re.search(r"41,100 +0\.5$", runs, re.M), "half of the interval over four runs"
    if width < 80:
        return  # the table above has no room for every column
    rows = [line for line in points.splitlines() if re.search(r"\bok( \*)?$", line)]
    assert [re.findall(r"\d\d,\d{3}", row)[0] for row in rows] == ["41,100", "40,000", "39,000"], "medians of the runs"
    assert re.search(r"\b4 +0\.3\b", rows[0]) and "oom (run 1)" in points


def test_one_run_has_no_deviation_to_be_told() -> None:
    """Checks a layout that ran once more, as the winner alone does in a search without repeats."""
    runs_of_winner = (measurement(tokens_per_s=43000.0), measurement(tokens_per_s=41000.0, repeat=1))
    text = _render(*runs_of_winner, width=220)
    told = "runs: in fresh processes; the row is that of median speed among those of the longest accumulation."
    assert told in text and "std" not in text
    assert "std % their standard deviation" in _render(*AGAIN, width=220)


def test_each_recipe_has_its_own_table_and_winner() -> None:
    other = Recipe(model=RECIPE.model, seq_len=1024, global_batch=512)
    text = _render(measurement(), measurement(recipe=other, tokens_per_s=90000.0), width=200)
    assert text.count("* the winner") == 2
    assert text.index("length 2048") < text.index("length 1024")


def test_a_miniature_is_marked() -> None:
    text = _render(measurement(recipe=miniature(), on=Layout(engine="ddp", dp_replicate=2)), width=80)
    assert text.startswith("MINIATURE of bloom-7b1")


def test_nothing_but_failures_and_nothing_at_all() -> None:
    assert "oom" in _render(oom(), width=80)
    assert "Skipped: 1 batch point of 1 layout." in _render(skipped(), width=80)
    assert _render(width=80).strip() == ""


def test_each_skipped_point_is_named_or_counted_with_its_reason() -> None:
    few = [skipped(micro_batch=size, reason="too large") for size in (4, 8)]
    few.append(skipped(on=Layout(engine="ddp", dp_replicate=4), micro_batch=8, reason="too large"))
    assert skipped_lines(few) == [
        "Skipped: 3 batch points of 2 layouts.",
        "  FSDP2 stage 3, sync last, eager, MBS 4, 8; DDP, sync last, eager, MBS 8: too large",
    ]
    many = [skipped(on=layout(bucket_mib=n + 1), micro_batch=size) for n in range(4) for size in (1, 2)]
    other_reasons = [skipped(micro_batch=2**n, reason=f"reason {letter}") for n, letter in enumerate("abcdefg")]
    head, first, *_, last = skipped_lines([*many, *other_reasons])
    assert head == "Skipped: 15 batch points of 5 layouts."
    assert ", MBS 1, 2, and 6 points of 3 other layouts: states alone need" in first
    assert last == "  2 points for other reasons, see --json"
    unlike = [skipped(micro_batch=size, reason=f"needs {9.5 * size} GiB: states {size}.5") for size in (4, 8)]
    assert skipped_lines(unlike)[1].endswith(", MBS 4, 8: needs 38.0 GiB: states 4.5 (the first)")


def test_color_changes_no_letter() -> None:
    plain, colored = _render(*MANY, width=160), _render(*MANY, width=160, color=True)
    assert "\x1b[" not in plain and "\x1b[" in colored
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in stripped.splitlines()] == [line.rstrip() for line in plain.splitlines()]


def test_of_a_large_study_the_best_and_a_count() -> None:
    """Checks that the terminal shows 100 rows of each kind and counts the others: ten thousand rows are for a file."""
    ran = [measurement(on=layout(bucket_mib=n + 1), tokens_per_s=1000.0 + n) for n in range(130)]
    failed = [oom(on=layout(bucket_mib=n + 1), micro_batch=2) for n in range(104)]
    text = _render(*ran, *failed, width=200)
    assert len(re.findall(r"buckets \d+ MiB.* ok", text)) == 100 and text.count(" oom ") == 100
    assert re.search(r"buckets 130 MiB.* ok", text) and not re.search(r"buckets 30 MiB.* ok", text)
    assert "and 30 more that ran, see the study's files or --json" in text
    assert "and 4 more that failed, see the study's files or --json" in text


def test_rows_that_were_stopped_as_slow_have_one_note_together() -> None:
    """Checks that such rows share one note: an exhaustive search has dozens, and a line for each would bury its
    results.
    """
    slow = [
        measurement(on=layout(bucket_mib=n + 100), tokens_per_s=30000.0, outcome=Outcome.SLOW, reason="stopped after 3")
        for n in range(20)
    ]
    flat = " ".join(_render(*MANY, *slow, width=160).split())
    assert "slow (20 rows): stopped early" in flat and "stopped after 3" not in flat
    assert "Not counted: DDP" in flat, "what thrashed still says why"


def test_rows_that_ran_beside_other_processes_are_named() -> None:
    beside = [
        measurement(micro_batch=micro_batch, others_gib=(22.8,), tokens_per_s=1000.0 * micro_batch)
        for micro_batch in (2, 4)
    ]
    flat = " ".join(_render(*beside, measurement(others_gib=(0.0,)), width=160).split())
    assert f"Other processes held memory of the GPUs: {layout().label}, MBS 4, 2 " in flat
    assert "Other processes" not in _render(measurement(others_gib=(0.0,)), width=160)


def test_host_memory_has_a_column_where_states_are_there() -> None:
    away = measurement(on=layout(offload="moments"), peak_host_gib=61.234)
    lines = _render(away, measurement(peak_host_gib=9.876), width=220).splitlines()
    assert any("of host" in line for line in lines)
    assert any("61.2" in line for line in lines) and not any("9.88" in line or "9.9 " in line for line in lines)
    assert "of host" not in _render(measurement(peak_host_gib=9.876), width=220)


def test_the_fullest_stage_has_a_column_where_there_are_pipelines() -> None:
    pipeline = Layout(engine="ddp", pp=2, schedule="interleaved", virtual=2)
    split = measurement(on=pipeline, memory_rank=1, peak_allocated_gib=3.25, tokens_per_s=5000.0)
    lines = _render(split, measurement(memory_rank=0), width=200).splitlines()
    row = next(line for line in lines if " 3.25" in line)
    assert "1, 3" in row.split(" 3.25")[1]
    title = re.compile("fullest(?! device)")
    assert any(map(title.search, lines))
    assert not title.search(_render(measurement(memory_rank=0), width=200))
