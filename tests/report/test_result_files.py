"""The files of a study's folder, and reading a layout.json back."""

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from platform.common.errors import InputError
from platform.report.result_files import write_results
from platform.study.history import History
from platform.study.layout_file import LayoutFile, read_layout
from platform.study.result.result import StudyResult
from tests.samples import RECIPE, SMALL, csv_rows, header, layout, measurement, oom
from tests.study.parquet_reader import read_parquet
from trainers.engines.deepspeed_config import ds_config
from trainers.records.journal import Measured
from trainers.records.measurement import Measurement
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import to_json
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

ENGINE = importlib.import_module("trainers.engines.deepspeed")
ZERO = Layout(engine="deepspeed", zero_stage=1, dp_shard=4, checkpointing="full")
AT = "2026-01-01T00:00:00+00:00"


def _history(*measurements: Measurement, **fields: Any) -> History:
    return History([header(at=AT, **fields), *(Measured(at=AT, measurement=point) for point in measurements)])


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    best = measurement(on=ZERO, micro_batch=2, tokens_per_s=50000.0)
    history = _history(measurement(), best, oom(micro_batch=4))
    written = write_results(tmp_path, StudyResult.of(history))
    assert [path.name for path in written] == [
        "measurements.csv", "measurements.parquet", "layout.json", "ds_config.json",
        "speed-memory.png", "heat-map.png"]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in written)
    read = dataclasses.replace(read_layout(tmp_path / "layout.json"), caveats=())
    assert read == LayoutFile(layout=ZERO, recipe=RECIPE, batch=best.batch)
    assert read_parquet(tmp_path / "measurements.parquet") == history.measurements
    assert [row["outcome"] for row in csv_rows(tmp_path / "measurements.csv")] == ["ok", "ok", "oom"]


def test_files_of_an_earlier_winner_do_not_stay(tmp_path: Path) -> None:
    write_results(tmp_path, StudyResult.of(_history(measurement(on=ZERO))))
    write_results(tmp_path, StudyResult.of(_history(measurement())))
    assert not (tmp_path / "ds_config.json").exists()
    write_results(tmp_path, StudyResult.of(_history(oom())))
    assert not (tmp_path / "layout.json").exists()


def test_further_recipes_have_files_of_their_own(tmp_path: Path) -> None:
    other = Recipe(model=RECIPE.model, seq_len=1024, global_batch=512)
    history = _history(measurement(), measurement(recipe=other, on=ZERO), recipes=(RECIPE, other))
    names = {path.name for path in write_results(tmp_path, StudyResult.of(history))}
    assert {f"layout-{other.id}.json", f"ds_config-{other.id}.json", "layout.json"} <= names
    assert read_layout(tmp_path / f"layout-{other.id}.json").recipe == other


def test_a_layout_alone_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"layout": {"engine": "ddp", "dp_replicate": 4}}))
    assert read_layout(path) == LayoutFile(layout=Layout(engine="ddp", dp_replicate=4))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is no JSON file"),
        ("[]", "it holds a list where a JSON object is expected"),
        ('{"recipe": {}}', 'must hold an object with "layout"'),
        ('{"layout": {"engine": "zero"}}', "engine must be one of ddp, fsdp, deepspeed"),
        ('{"layout": {"engine": "ddp", "stage": 3}}', "no field stage"),
        ('{"layout": {}}', "engine"),
        ('{"layout": {"engine": "ddp", "tp": "two"}}', "is not valid"),
        (
            '{"layout": {"engine": "ddp"}, "batch": {"micro_batch": 0, "grad_accum": 1}}',
            "micro_batch must be at least 1",
        ),
    ],
)
def test_what_is_no_layout_is_one_sentence(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(InputError, match=reason) as caught:
        read_layout(path)
    assert "\n" not in str(caught.value)


def test_a_batch_that_does_not_make_the_global_batch_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    parts = {"layout": to_json(layout()), "recipe": to_json(RECIPE), "batch": {"micro_batch": 2, "grad_accum": 2}}
    path.write_text(json.dumps(parts))
    with pytest.raises(InputError, match="needs grad_accum 64 for global batch 512, got 2"):
        read_layout(path)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InputError, match="cannot be read: there is no such file"):
        read_layout(Path("/nowhere/layout.json"))


AT_RUN_TIME = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}
OF_THE_ENGINE = {"optimizer", "timers", "steps_per_print"}
"""torch's own AdamW in place of its name in DeepSpeed, and no reports at every step."""


class _Enough(Exception):
    """Raised in place of `deepspeed.initialize`."""


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("precision", "states"), [("bf16", "fp32"), ("fp16", "fp32"), ("fp32", "fp32"), ("bf16", "bf16")]
)
def test_the_winner_s_deepspeed_configuration_is_what_the_engine_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int, precision: Any, states: Any
) -> None:
    recipe = dataclasses.replace(
        RECIPE, model=SMALL, compute_precision=precision, state_precision=states, grad_clip=0.5
    )
    degrees = {"dp_shard": 4} if stage else {"dp_replicate": 4}
    on = Layout(engine="deepspeed", zero_stage=stage, grad_sync="every" if stage > 1 else "last", **degrees)  # type: ignore[arg-type]
    write_results(
        tmp_path, StudyResult.of(_history(measurement(on=on, recipe=recipe, micro_batch=2), recipes=(recipe,)))
    )
    written = json.loads((tmp_path / "ds_config.json").read_text())
    assert written["train_batch_size"] == 512 == written["train_micro_batch_size_per_gpu"] * 4 * 64
    assert written["gradient_accumulation_steps"] == 64 and written["gradient_clipping"] == 0.5
    assert written["zero_optimization"]["stage"] == stage and written["data_types"]["grad_accum_dtype"] == states

    written_config: dict[str, Any] = {}

    def initialize(*, config: dict[str, Any], **_: Any) -> None:
        written_config.update(config)
        raise _Enough

    monkeypatch.setattr(ENGINE.deepspeed, "initialize", initialize)
    monkeypatch.setattr(ENGINE.deepspeed.zero, "Init", lambda **_: None)
    with pytest.raises(_Enough):
        ENGINE.DeepSpeedEngine(recipe, on, torch.device("cpu"))
    assert written_config["gradient_clipping"] == (0.5 if stage else 0.0), "at stage 0 the engine clips itself"
    set_later = AT_RUN_TIME | OF_THE_ENGINE | (set() if stage else {"gradient_clipping"})
    assert {name: value for name, value in written_config.items() if name not in set_later} == {
        name: value for name, value in written.items() if name not in set_later
    }


def test_other_engines_have_no_deepspeed_configuration() -> None:
    with pytest.raises(ValueError, match="needs a deepspeed layout, got fsdp"):
        ds_config(RECIPE, layout(), BatchPoint.of(RECIPE, layout(), 1))
