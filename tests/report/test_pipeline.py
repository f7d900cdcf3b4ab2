"""Reports on a pipeline: the stage with most memory, the measured bubble beside the formula's."""

from pathlib import Path

from platform.report.measurement_table import write_table
from platform.report.progress import measurement_line
from platform.report.summary import pipeline_words
from tests.measuring.test_pipeline_timing import INTERLEAVED, measurement
from tests.samples import csv_rows, result_of
from trainers.spec.layout import Layout


def test_a_pipeline_s_line_says_its_stage_and_its_bubble_beside_the_formula() -> None:
    timed = measurement(INTERLEAVED, 8, memory_rank=1, peak_allocated_gib=3.0, pipeline_bubble=0.25)
    words = " on stages 1 and 5, a bubble of 25.0% beside 15.8% by (p - 1) / (v m + p - 1)"
    assert pipeline_words(timed) == words
    assert f"3.00 GiB{words}" in measurement_line(timed)


def test_nothing_is_said_of_other_layouts_and_where_a_step_is_too_short_why_only_the_formula_s_bubble_stands() -> None:
    assert pipeline_words(measurement(Layout(engine="ddp"), 8, memory_rank=0)) == ""
    assert pipeline_words(measurement(Layout(engine="ddp", pp=2), 4, memory_rank=1)) == (
        " on stage 1, a bubble of 20.0% by (p - 1) / (v m + p - 1), not measured with as few as 4 micro-batches"
    )
    assert pipeline_words(measurement(Layout(engine="ddp", pp=2), 64)).endswith("by (p - 1) / (v m + p - 1)")


def test_the_table_of_runs_notes_the_stage_with_most_memory(tmp_path: Path) -> None:
    piped, plain = (
        measurement(layout, 8, memory_rank=1) for layout in (INTERLEAVED, Layout(engine="ddp", dp_replicate=2))
    )
    write_table(tmp_path / "table.csv", result_of([piped, plain]))
    notes = [row["notes"] for row in csv_rows(tmp_path / "table.csv")]
    assert ["most memory on stages 1 and 5" in note for note in notes] == [True, False]
