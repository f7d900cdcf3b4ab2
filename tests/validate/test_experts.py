"""Rows of mixtures of experts: published ones, and those of this project."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from platform.cost_model.columns import Columns, from_rows
from platform.cost_model.predict import predict
from platform.report.measurement_table import HEADER, table_of
from platform.validate.facts import normalized
from platform.validate.published_run import PublishedRun, interpret
from platform.validate.row_parts import model_of
from tests.cost_model.points import PRINTED_ROW
from tests.samples import RECIPE, layout, measurement, result_of
from trainers.spec.model import ModelSpec

SHAPE = {"layers": "24", "hidden": "2048", "heads": "16", "kv_heads": "16", "ffn": "", "vocab": "151936"}
QWEN = {**SHAPE, "params_b": "14.3", "experts": "60", "top_k": "4", "moe_ffn": "1408", "shared_experts": "4"}
"""Qwen1.5-MoE-A2.7B by its model card: 14,315,784,192 parameters."""
MIXTRAL = {**SHAPE, "params_b": "10.8", "experts": "8", "top_k": "2"}


def row(**changes: str) -> Mapping[str, str]:
    """Returns a published row with these cells."""
    return normalized({**PRINTED_ROW, "model": "a mixture", **changes})


def test_a_model_has_the_parameters_of_its_card() -> None:
    assert model_of(row(**QWEN)).num_parameters == pytest.approx(14_315_784_192, rel=1e-3)


def test_the_width_of_an_expert_follows_from_the_parameters() -> None:
    model = model_of(row(**MIXTRAL))
    assert model.ffn_size % 8 == 0 and model.num_parameters / 1e9 == pytest.approx(10.8, rel=1e-3)
    assert (model.architecture, model.num_experts, model.experts_per_token) == ("mixtral", 8, 2)


def test_rows_with_and_without_a_shared_expert_are_predicted_beside_each_other() -> None:
    runs = [interpret(row(**cells)) for cells in (QWEN, MIXTRAL, {})]
    alone = [_seconds([run]) for run in runs]
    assert _seconds(runs) == pytest.approx(np.concatenate(alone)) and np.isfinite(alone).all()


def test_a_part_of_each_expert_takes_less_time_than_all_of_it() -> None:
    sizes = {"micro_batch": "1", "grad_accum": "", "global_batch": "512"}
    undivided, divided = (interpret(row(**MIXTRAL, **sizes, tp=tp, dp=dp)) for tp, dp in (("1", "32"), ("4", "8")))
    assert divided.values["hidden"] == undivided.values["hidden"]
    per_token = [_compute(run) / run.values["micro_batch"] / run.values["grad_accum"] for run in (undivided, divided)]
    assert per_token[1] < 0.5 * per_token[0]


@pytest.mark.parametrize("kernel", ["grouped", "loop"])
def test_this_project_s_rows_are_read_back(kernel: str) -> None:
    spec = ModelSpec(
        name="small", architecture="qwen3_moe", num_layers=4, hidden_size=1024, num_heads=8, num_kv_heads=4,
        ffn_size=512, num_experts=16, experts_per_token=4, vocab_size=8192, max_positions=2048, tied_embeddings=False,
    )  # fmt: skip
    own_run = measurement(recipe=dataclasses.replace(RECIPE, model=spec), on=layout(experts=kernel))
    columns, (measured,) = table_of(result_of([own_run]))
    cells = {column.key: "" if (value := column.value(measured)) is None else str(value) for column in columns}
    assert list(cells) == list(HEADER)
    read = normalized({**cells, "gpu": "H200"})
    model = model_of(read)
    assert (model.architecture, model.num_experts, model.experts_per_token) == ("qwen3_moe", 16, 4)
    assert model.ffn_size == 512
    assert model.num_parameters == pytest.approx(spec.num_parameters, rel=1e-4), "its head norms are not in the table"
    assert bool(interpret(read).values["grouped_experts"]) == (kernel == "grouped")


def _seconds(runs: list[PublishedRun]) -> np.ndarray:
    return predict(_columns(runs)).step.total_s


def _compute(run: PublishedRun) -> float:
    return float(predict(_columns([run])).step.compute_s[0])


def _columns(runs: list[PublishedRun]) -> Columns:
    return from_rows([run.values for run in runs])


@pytest.mark.parametrize(
    ("model", "experts", "family"),
    [
        ("gpt-oss-120b", "128", "gpt_oss"),
        ("Qwen3-30B-A3B", "128", "qwen3_moe"),
        ("Qwen3-8B", "", "qwen3"),
        ("Qwen2-57B-A14B", "64", "qwen2_moe"),
        ("OLMoE-1B-7B", "64", "olmoe"),
        ("Mixtral-8x7B", "8", "mixtral"),
        ("ERNIE-4.5-0.3B", "", "ernie4_5"),
        ("gemma-3-4b-pt", "", "gemma3_text"),
        ("Qwen2.5-7B", "", "qwen2"),
        ("GPT-2.7B", "", ""),
        ("GPT-20B", "", ""),
        ("GPT 22B", "", ""),
        ("gpt2-xl", "", "gpt2"),
        ("a mixture", "8", ""),
    ],
)
def test_a_models_name_tells_its_family(model: str, experts: str, family: str) -> None:
    """Checks that a family whose name has an underscore, and one with experts beside a dense one, are found."""
    assert row(model=model, experts=experts, top_k=experts and "2").get("architecture", "") == family
