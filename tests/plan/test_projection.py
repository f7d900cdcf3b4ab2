"""Plans with `--learn-from` and `--software`: which times are measured, which predicted, and by whose trainers."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.cost_model import stacks
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.predict import predict
from platform.cost_model.stacks import with_software
from platform.plan.__main__ import main
from platform.plan.software import planned_columns
from platform.study.study import Study
from platform.validate.row_software import SHARDED_WHOLE
from search_spaces import load
from tests.samples import header, layout, measurement
from trainers.records.journal import Measured
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout

FOUR = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=4, capability=(9, 0))
NARROW = ("engine=fsdp", "attention=sdpa", "compile=block", "loss=chunked", "tp=1", "pp=1", "cp=1")
RECIPE = load("bloom7b").recipe


def slower(micro_batch: int, on: Layout, factor: float) -> Any:
    """Returns a measurement on four H200 that took `factor` times as long as is predicted."""
    measured = measurement(recipe=RECIPE, on=on, micro_batch=micro_batch)
    step_s = (
        float(predict(from_points([(RECIPE, on, measured.batch)], find_cluster("4xH200"))).step.total_s[0]) * factor
    )
    return measurement(recipe=RECIPE, on=on, micro_batch=micro_batch, tokens_per_s=RECIPE.tokens_per_step / step_s)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a study on four H200 whose steps all took 1.2 times as long as predicted."""
    folder = tmp_path_factory.mktemp("studies")
    with Study.create(folder, "four") as study_of_four:
        study_of_four.record(header("four", recipes=(RECIPE,), cluster=FOUR))
        for stage in (2, 3):
            for micro_batch in (1, 2, 4):
                on = layout(zero_stage=stage, attention="sdpa", compile="block", loss="chunked")
                study_of_four.record(Measured(measurement=slower(micro_batch, on, 1.2)))
    return folder / "four"


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Returns the plan of the narrow space's one recipe."""
    axes = [word for change in NARROW for word in ("--set", change)]
    assert main(["bloom7b", *axes, *arguments, "--top", "500", "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)["recipes"][0]


def times(plan: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the layouts of a plan by identity and micro-batch."""
    return {
        (planned_layout["layout_id"], planned_layout["micro_batch"]): planned_layout
        for planned_layout in plan["layouts"]
    }


def test_measured_points_have_the_measured_time_and_the_others_are_corrected(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = times(planned(capsys, "--cluster", "4xH200"))
    taught = planned(capsys, "--cluster", "4xH200", "--learn-from", str(study))
    both = [(plain[key], planned_layout) for key, planned_layout in times(taught).items() if key in plain]
    assert {planned_layout["measured"] for _, planned_layout in both} == {True, False}
    for before, after in both:
        ratio = after["step_time_s"] / before["step_time_s"]
        assert ratio == pytest.approx(1.2) if after["measured"] else 1.05 < ratio < 1.25
    assert re.search(r"learned from 6 step times of four on .*; 6 of [\d,]+ points measured", taught["learned"])


def test_a_study_is_named_or_its_path_given_and_a_miniature_s_is_refused(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_name = planned(capsys, "--cluster", "4xH200", "--studies", str(study.parent), "--learn-from", "four")
    assert by_name == planned(capsys, "--cluster", "4xH200", "--learn-from", str(study))
    stand_in = load("bloom7b").miniature
    assert stand_in is not None
    with Study.create(tmp_path, "small") as small:
        small.record(header("small", recipes=stand_in.recipes, cluster=FOUR, miniature=True))
    assert main(["bloom7b", "--cluster", "4xH200", "--learn-from", str(tmp_path / "small")]) == 2
    assert re.search("small measured .*, which stands in where there is no GPU", capsys.readouterr().err)


def test_a_measured_point_is_certain_to_run_unless_memory_is_capped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on = layout(zero_stage=3, attention="sdpa", compile="block", loss="chunked")
    with Study.create(tmp_path, "edge") as study_at_edge:
        study_at_edge.record(header("edge", recipes=(RECIPE,), cluster=FOUR))
        study_at_edge.record(Measured(measurement=slower(8, on, 0.8)))
    key, options = (on.id, 8), ("--cluster", "4xH200", "--set", "micro_batch=8")
    assert 0.5 < times(planned(capsys, *options))[key]["ok_probability"] < 0.9
    taught = times(planned(capsys, *options, "--learn-from", str(tmp_path / "edge")))
    assert taught[key]["measured"] and taught[key]["ok_probability"] == 1.0 and next(iter(taught)) == key
    capped = planned(capsys, *options, "--learn-from", str(tmp_path / "edge"), "--device-memory-gib", "139")
    assert times(capped)[key]["ok_probability"] < 0.9


def test_on_a_larger_cluster_all_is_predicted_from_what_was_measured_with_wider_intervals(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = ("--cluster", "8x8xH200", "--set", "global_batch=512")
    plain, taught = planned(capsys, *large), planned(capsys, *large, "--learn-from", str(study))
    near = planned(capsys, "--cluster", "4xH200", "--learn-from", str(study))
    both = [(times(plain)[key], planned_layout) for key, planned_layout in times(taught).items() if key in times(plain)]
    assert both and not any(planned_layout["measured"] for _, planned_layout in both)
    assert np.median([after["step_time_s"] / before["step_time_s"] for before, after in both]) > 1.03
    assert taught["learned"].endswith("every step time predicted; nothing between nodes was measured")

    def widths(plan: dict[str, Any]) -> list[float]:
        return [
            planned_layout["step_time_high_s"] / planned_layout["step_time_s"]
            for planned_layout in plan["layouts"]
            if not planned_layout["measured"]
        ]

    assert np.median(widths(taught)) > np.median(widths(near))


def test_another_software_has_rates_kernels_and_data_parallelism_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours = planned(capsys, "--cluster", "8xH100")
    theirs = planned(capsys, "--cluster", "8xH100", "--software", "megatron-core")
    assert {our["software"] for our in ours["layouts"]} == {"layout-search"}
    assert {their["software"] for their in theirs["layouts"]} == {"megatron-core"}
    assert theirs["layouts"][0]["step_time_s"] < 0.95 * ours["layouts"][0]["step_time_s"]
    assert theirs["num_too_large"] <= ours["num_too_large"], "layouts that are one to it, yet fit, are not too large"


def test_a_software_s_row_and_its_plan_have_the_same_features() -> None:
    """Checks a layout with tensor parallelism in every stack."""
    on = layout(engine="deepspeed", zero_stage=1, dp_shard=2, tp=2)
    point = measurement(recipe=RECIPE, on=on, micro_batch=2)
    cluster = find_cluster("4xH100")
    for software in ("megatron-lm", "nanotron", "torchtitan", "huggingface"):
        columns = planned_columns([(RECIPE, on, point.batch)], with_software(cluster, software))
        assert columns.micro_batch.item() == 2 and columns.tp.item() == 2
        assert (columns.sequence_parallel.item() > 0) == (software in ("nanotron", "torchtitan")), software


@pytest.mark.parametrize(("software", "keeps"), [("torchtitan", True), ("other", True), ("layout-search", False)])
def test_parameters_of_a_pipeline_stay_gathered_where_the_software_keeps_them(software: str, keeps: bool) -> None:
    shards = {"zero_stage": 3, "grad_sync": "last", "attention": "sdpa"}
    layouts = [layout(pp=2, dp_shard=8, **shards), layout(dp_shard=16, **shards)]
    points = [(RECIPE, on, measurement(recipe=RECIPE, on=on, micro_batch=1).batch) for on in layouts]
    columns = planned_columns(points, with_software(find_cluster("2x8xH100"), software))
    assert columns.zero_stage.tolist() == [2 if keeps else 3, 3]


def test_every_software_with_pipelines_of_fsdp_says_whether_it_keeps_parameters() -> None:
    strategies = {name: stacks.runs(name) for name in stacks.names()}
    pipelined = [name for name, runs in strategies.items() if any("pp" in runs.get(of, ()) for of in SHARDED_WHOLE)]
    assert pipelined and all(stacks.fact(name, "keeps_parameters", None) is not None for name in pipelined)


def test_devices_of_the_same_arithmetic_differ_by_their_memory_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Checks an H200, which is an H100 with more and faster memory: no software of others makes it slower."""
    at_two = ("--set", "micro_batch=2")  # which fit both
    h100, h200 = (times(planned(capsys, "--cluster", f"8x{device}", *at_two)) for device in ("H100", "H200"))
    ratios = [h100[key]["step_time_s"] / h200[key]["step_time_s"] for key in h100.keys() & h200.keys()]
    assert len(ratios) > 3 and min(ratios) > 0.998 and max(ratios) < 1.08


def test_a_device_without_runs_and_an_unknown_network_have_wide_intervals_and_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known_device = planned(capsys, "--cluster", "8xH200")["layouts"][0]
    unknown = planned(capsys, "--cluster", "8xMI300X")["layouts"][0]
    assert (
        unknown["step_time_high_s"] / unknown["step_time_s"]
        > 1.15 * known_device["step_time_high_s"] / known_device["step_time_s"]
    )
    command = ["bloom7b", "--cluster", "4x8xMI300X", "--set", "engine=fsdp", "--set", "tp=1", "--set", "pp=1"]
    assert main(command) == 0
    assert "no network of MI300X nodes: 200 Gbit/s a node are assumed" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--node-gbps", "3200"]) == 0
    assert "no network" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--software", "megatrn"), "unknown software 'megatrn': there are layout-search, megatron-lm"),
        (("--learn-from", "missing"), "missing"),
        (("--learn-from", "STUDY", "--software", "nanotron"), "a study of layout-search, got --software nanotron"),
        (("--learn-from", "STUDY", "--min-nodes"), "--learn-from corrects plans of layouts by axes, got --min-nodes"),
        (("--node-gbps", "0"), "--node-gbps must be above 0"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(study) if argument == "STUDY" else argument for argument in arguments]
    assert main(["bloom7b", "--cluster", "4xH200", *argv]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
