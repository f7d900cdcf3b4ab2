"""Every view of a search of a command: what the command decides itself is shown nowhere, in place of some default."""

import csv
import dataclasses
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from platform.report.html.page import page
from platform.report.json_report import as_json
from platform.report.measurement_table import write_table
from platform.report.rows import tables
from platform.report.summary import verdicts
from platform.report.terminal import render
from platform.study.history import History
from platform.study.parquet import write_parquet
from platform.study.result.caveats import first_losses
from platform.study.result.result import StudyResult
from platform.tracking.content import content_of
from platform.tracking.study_run import study_params
from search_spaces.command import space_of_command
from tests.samples import header
from tests.study.parquet_reader import read_parquet
from trainers.records.journal import Line, Measured, Planned, PlannedLayout
from trainers.records.measurement import SETTINGS, TRAINING_STATE, Conditions, Measurement, Outcome
from trainers.spec.axis import axes_of
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

LATE = "2026-01-01T00:00:00+00:00"
FALSE = ("eager", "adamw", "bf16", "fp32", "causal", "ddp")
"""Defaults of this project's models, which a command need not have."""


@pytest.fixture
def result(tmp_path: Path) -> StudyResult:
    (tmp_path / "train.py").touch()
    command = ("torchrun", "train.py", "{micro_batch=1,2}", "{grad_accum}", "{mode=plain,fused}")
    space = space_of_command(command, folder=tmp_path, tokens_per_step=1024, seq_len=16)
    candidates, _ = space.candidates(4)
    conditions = Conditions(
        device="Made-up GPU", device_memory_gib=80.0, num_nodes=1, versions={}, environment={}, commit="0123456",
        engine_lacks=(SETTINGS, TRAINING_STATE),
    )  # fmt: skip
    lines: list[Line] = [header(recipes=(space.recipe,), at=LATE)]
    layouts = [
        PlannedLayout(recipe=entry.recipe.id, layout=entry.layout, micro_batches=entry.micro_batches)
        for entry in candidates
    ]
    lines.append(Planned(layouts=tuple(layouts), at=LATE))
    for number, candidate in enumerate(candidates):
        for repeat in range(3):
            measured = Measurement(
                recipe=candidate.recipe,
                layout=candidate.layout,
                batch=candidate.batch_points()[0],
                outcome=Outcome.OK,
                trial_id=f"t{number}",
                repeat=repeat,
                step_time_s=1.0 + number,
                windows_s=(1.0 + number,) * 3,
                tokens_per_s=1024 / (1 + number),
                tokens_per_s_per_gpu=256 / (1 + number),
                losses=(3.0, 2.9),
                peak_device_gib=12.5,
                remark="by the clock its steps took 9% longer than the command reports",
                conditions=conditions,
            )
            lines.append(Measured(measurement=measured, at=LATE))
    return StudyResult.of(History(lines))


def test_no_view_shows_what_is_not_known(result: StudyResult, tmp_path: Path) -> None:
    write_table(tmp_path / "table.csv", result)
    write_parquet(tmp_path / "table.parquet", result.history.measurements)
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    params = [content_of(m, result.header, started=LATE, ended=LATE).params for m in result.history.measurements]
    views = {
        "terminal": render(result, width=200),
        "json": json.dumps(as_json(result)),
        "mlflow's tables": json.dumps(tables(result)),
        "mlflow's parameters": json.dumps([*params, study_params(result.header)]),
        "table": json.dumps(
            [{k: v for k, v in row.items() if k not in ("source", "url_or_repo_path")} for row in rows]
        ),
        "parquet": json.dumps(pq.read_table(tmp_path / "table.parquet").to_pylist(), default=str),
        "page": page([result]),
    }
    for name, text in views.items():
        assert "mode=plain" in text or '"mode": "plain"' in text, name
        assert [word for word in FALSE if word in text.replace("gradient_accum", "")] == [], name
    assert {row["notes"] for row in rows if row["notes"].endswith("reports")} != set()


def test_a_command_survives_the_table(result: StudyResult, tmp_path: Path) -> None:
    write_parquet(tmp_path / "table.parquet", result.history.measurements)
    back = read_parquet(tmp_path / "table.parquet")
    for first, second in zip(back, result.history.measurements, strict=True):
        assert (first.recipe, first.layout.flags, first.batch) == (second.recipe, second.layout.flags, second.batch)
        assert (first.tokens_per_s, first.remark, first.conditions) == (
            *(second.tokens_per_s, second.remark),
            second.conditions,
        )


def test_the_answer_has_the_command_and_what_is_not_compared(result: StudyResult) -> None:
    text = "\n".join(verdicts(result))
    assert "Its command: torchrun train.py 1 16 plain" in text
    assert "Not gated: nothing inside of a command is compared; the first losses of its 6 runs differ by 0" in text
    assert "As reported: by the clock its steps took 9% longer than the command reports." in text
    assert "Numerics gate" not in text and "--set" not in text


def test_first_losses_that_differ_are_told(result: StudyResult) -> None:
    first, *others = result.history.measurements
    assert "differ by 3.3%: the order of its data" in first_losses([dataclasses.replace(first, losses=(3.1,)), *others])
    assert first_losses([first]) == "its steps report no losses to compare"


def test_unknown_fields_are_all_but_those_of_a_command(result: StudyResult) -> None:
    recipe, layout = result.history.measurements[0].recipe, result.history.measurements[0].layout
    assert set(axes_of(Recipe)) - recipe.unknown == {"seq_len", "global_batch", "grad_accum"}
    assert set(axes_of(Layout)) - layout.unknown == {"engine", "flags"}
