"""A plan for other software has what that software runs, and nothing else."""

import itertools
from typing import Any

import pytest

import search_spaces
from platform.cost_model import stacks
from platform.cost_model.hardware import THIS_PROJECT, find_cluster
from platform.cost_model.predict import predict
from platform.cost_model.stacks import fact, runs, with_software
from platform.plan.__main__ import main
from platform.plan.offers import refusal
from platform.plan.points import points_of
from platform.validate.published_run import interpret
from platform.validate.row_software import STAGES
from search_spaces import reference
from tests.plan.test_plan import printed_json
from trainers.spec.support import standing_refusal

OTHERS = tuple(name for name in stacks.names() if name != THIS_PROJECT)
BLOOM = search_spaces.load("bloom7b").with_changes(["micro_batch=1", "grad_sync=last", "cp=1,2"])
CLUSTER = find_cluster("2x8xH100")


@pytest.mark.parametrize("software", OTHERS)
def test_what_every_software_runs_is_stated_with_its_source(software: str) -> None:
    offered = runs(software)
    assert offered and offered.keys() <= STAGES.keys() & fact(software, "engines", {}).keys()
    assert all(set(degrees) <= {"tp", "pp", "cp", "virtual"} for degrees in offered.values())
    assert all("pp" in degrees or "virtual" not in degrees for degrees in offered.values())
    assert fact(software, "compiles", "none") in ("none", "block", "model")


@pytest.mark.parametrize("software", OTHERS)
def test_each_row_of_a_software_is_one_that_it_runs(software: str) -> None:
    """Checks the layouts of a space, and that a table's row of each is read as the same strategy, unremarked."""
    cluster = with_software(CLUSTER, software)
    points = points_of(BLOOM, BLOOM.recipe, cluster)
    combined: set[tuple[str, frozenset[str]]] = set()
    for layout in set(points.layouts):
        strategy = layout.rules.strategy(layout)
        beside = {name for name in ("tp", "pp", "cp", "virtual") if getattr(layout, name) > 1}
        assert beside <= set(runs(software)[strategy]), layout.label
        assert layout.compile == fact(software, "compiles", "none") and layout.loss == layout.mlp == "plain"
        assert not refusal(BLOOM.recipe, layout, software)
        combined.add((strategy, frozenset(beside)))
    alone = {(strategy, frozenset[str]()) for strategy in runs(software) if strategy != "hsdp"}
    assert alone <= combined, "each strategy is offered"
    for strategy, degree in itertools.product(runs(software), ("tp", "pp", "cp", "virtual")):
        offers = any(name == strategy and degree in beside for name, beside in combined)
        assert offers == (degree in runs(software)[strategy] and strategy != "hsdp"), (strategy, degree)


@pytest.mark.parametrize("name", ("bloom7b", "gpt2", "gpt_175b", "tr3m_1b3"))
def test_each_row_of_this_project_is_one_that_a_search_runs(name: str) -> None:
    space = reference.load(name) if name in reference.names() else search_spaces.load(name)
    cluster = find_cluster("2x8xH100")
    for layout in set(points_of(space, space.recipe, cluster).layouts):
        assert standing_refusal(space.recipe, layout, cluster.num_devices) is None, layout.label


@pytest.mark.parametrize(
    ("software", "strategy", "degrees"),
    [
        ("megatron-core", "zero1", {"tp", "pp", "virtual"}),  # the usual published layout
        ("megatron-lm", "zero1", {"tp", "pp", "cp", "virtual"}),
        ("megatron-deepspeed", "zero1", {"tp", "pp"}),
        ("torchtitan", "fsdp", {"tp", "pp", "virtual"}),
    ],
)
def test_usual_layouts_are_offered(software: str, strategy: str, degrees: set[str]) -> None:
    assert degrees <= set(runs(software)[strategy])


@pytest.mark.parametrize(
    ("software", "strategies"),
    [("torchtitan", {"zero1", "zero3"}), ("llm-foundry", {"zero1", "zero3"}), ("nanotron", {"zero2", "fsdp"})],
)
def test_what_a_software_lacks_is_not_offered(software: str, strategies: set[str]) -> None:
    assert not strategies & runs(software).keys()


def test_a_published_row_of_a_strategy_that_its_software_lacks_is_read_and_said_to_be_one() -> None:
    row = {
        "model": "gpt", "layers": "24", "hidden": "2048", "heads": "16", "vocab": "51200", "seq_len": "2048",
        "gpu": "A100-SXM4-80GB", "gpus": "8", "tp": "2", "pp": "1", "strategy": "zero1", "micro_batch": "1",
        "grad_accum": "1", "activation_ckpt": "none", "precision": "bf16", "status": "ok", "iter_time_s": "1",
    }  # fmt: skip
    remarks = {software: interpret(row | {"software": software}).assumed for software in ("megatron-lm", "torchtitan")}
    assert remarks["megatron-lm"] == ()
    assert any("torchtitan trains with no zero1" in remark for remark in remarks["torchtitan"])
    beside = interpret(row | {"software": "fms-fsdp", "strategy": "fsdp"}).assumed
    assert any("fms-fsdp has no tp beside fsdp" in remark for remark in beside)


def test_a_software_that_lacks_what_is_set_says_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bloom7b", "--cluster", "8xH100", "--software", "torchtitan", "--set"]
    assert main([*arguments, "engine=deepspeed"]) == 2
    assert "torchtitan runs nothing of --set engine=deepspeed: it has engine fsdp or ddp" in capsys.readouterr().err
    assert main([*arguments, "loss=plain"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--set loss has no effect: torchtitan has kernels of its own" in shown


def test_a_published_layout_of_other_software_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Plans tp 2, pp 2, virtual 3 under ZeRO-1, which no engine of this project has."""
    asked_for = [f"--set={change}" for change in ("zero_stage=1", "tp=2", "pp=2", "virtual=3")]
    arguments = ["bloom7b", "--cluster", "2x8xH100", *asked_for]
    recipe: Any = printed_json(capsys, *arguments, "--software", "megatron-core")["recipes"][0]  # type: ignore[index]
    assert recipe["layouts"][0]["layout"].startswith("ZeRO-1, tp 2, pp 2, interleaved, virtual 3")
    assert main(arguments) == 2
    assert "gives no layout on any cluster" in capsys.readouterr().err


def test_the_engine_of_other_software_is_refused_by_this_project(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bloom7b", "--cluster", "8xH100", "--set", "engine=megatron"]) == 2
    assert "engine" in capsys.readouterr().err


def test_virtual_stages_make_the_bubble_of_megatrons_distributed_optimizer_smaller() -> None:
    points = points_of(BLOOM, BLOOM.recipe, with_software(CLUSTER, "megatron-core"))
    bubbles: dict[int, float] = {}
    bubble_s = predict(points.columns(with_software(CLUSTER, "megatron-core"))).step.bubble_s
    for layout, seconds in zip(points.layouts, bubble_s, strict=True):
        if layout.rules.label(layout) == "ZeRO-1" and layout.degrees.startswith("dp 8 pp 2"):
            bubbles[layout.virtual] = float(seconds)
    assert bubbles[2] == pytest.approx(bubbles[1] / 2, rel=0.05)
