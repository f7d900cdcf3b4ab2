"""Answers of `python -m platform.plan` to each question, and bad input."""

import collections
import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

import search_spaces
from platform.common.errors import InputError
from platform.cost_model.hardware import find_cluster
from platform.cost_model.predict import SURE
from platform.plan.__main__ import main
from platform.plan.alike import distinct_rows
from platform.plan.best_layouts import best_plan
from platform.plan.max_model import grown
from platform.plan.sizes import parse_counts, parse_phases
from search_spaces.gpt2 import GPT2, GPT2_XL
from trainers.spec import architectures
from trainers.spec.architectures import architecture_of
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.support import refusal


def printed_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    code = main([*arguments, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def test_best_layouts_fit_and_are_sorted(capsys: pytest.CaptureFixture[str]) -> None:
    (recipe,) = printed_json(capsys, "bloom7b", "--cluster", "8xH100")["recipes"]  # type: ignore[misc]
    layouts = recipe["layouts"]
    times = [
        layout["step_time_s"]
        * math.exp((math.log(layout["step_time_high_s"] / layout["step_time_s"]) / 1.2816) ** 2 / 2)
        for layout in layouts
    ]
    assert times == sorted(times) and layouts[0]["loses_by"] == ""
    assert all(layout["needed_gib"] <= 79.1 and layout["loses_by"] for layout in layouts[1:])
    assert recipe["skipped"]["predicted out of memory"] > 0


def test_a_model_s_name_is_printed_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "gpt2[bold]:rocket:"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**GPT2_XL.to_config(), "n_layer": 2}))
    assert main([str(folder), "--cluster", "8xH100", "--top", "1"]) == 0
    assert "\ngpt2[bold]:rocket:, length" in capsys.readouterr().out


def test_every_recipe_of_a_space_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    recipes = printed_json(capsys, "gpt_200b", "--cluster", "48xjean-zay-a100", "--set", "global_batch=2304")["recipes"]
    assert [recipe["recipe"].split(", ")[1] for recipe in recipes] == ["length 2048", "length 1024", "length 512"]  # type: ignore[union-attr]


def test_of_several_recipes_it_is_told_which_one_is_answered_for(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["gpt2", "--cluster", "8xH100", "--set", "seq_len=512,1024", "--gpus", "8"]
    assert main(arguments) == 0
    assert "For the first of 2 recipes alone" in capsys.readouterr().out
    assert "length 512" in str(printed_json(capsys, *arguments)["recipe"])


def test_more_devices_take_fewer_days_and_no_fewer_device_days(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = printed_json(capsys, "gpt_7_5b", "--cluster", "64xdgx-a100", "--gpus", "8..512")["gpus"]
    timed = [size for size in sizes if "days" in size]  # type: ignore[union-attr]
    assert [size["gpus"] for size in timed] == [8, 16, 32, 64, 128, 256, 512]
    days = [size["days"] for size in timed]
    assert days == sorted(days, reverse=True)
    assert days[-1] * 512 > days[0] * 8 * 0.95


@pytest.mark.slow
def test_the_fewest_nodes_hold_the_sum_that_is_shown_and_keep_the_global_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    axes = ("--set", "compute_precision=fp16", "--set", "global_batch=1536", "--set", "checkpointing=full")
    axes = (*axes, "--set", "engine=fsdp", "--set", "zero_stage=3", "--set", "tp=1,4", "--set", "cp=1")
    arguments = ("gpt_175b", "--cluster", "jean-zay-v100", *axes, "--min-nodes")
    fewest: Any = printed_json(capsys, *arguments)["min_nodes"]
    nodes, parts, needed = fewest["nodes"], fewest["parts_gib"], fewest["needed_gib"]
    # 16 bytes a parameter cannot fit fewer devices.
    assert nodes * 4 * 31.74 > 16 * 175e9 / 2**30
    assert nodes <= 60
    assert sum(parts.values()) < needed <= 31.74
    other = fewest["fewer_with_another_batch"]
    if other is not None:
        assert other["num_nodes"] < nodes and other["global_batch"] % (4 * other["num_nodes"]) == 0
    timed = [size for size in fewest["against_nodes"] if "days" in size]
    assert timed[0]["ok_probability"] >= SURE, "the first row and the answer go by one rule"
    assert all(size["tokens_per_s"] * size["step_time_s"] == pytest.approx(1536 * 2048) for size in timed), (
        "every row is of the batch that was requested"
    )


@pytest.mark.parametrize(
    ("space", "cluster", "fitting"), [("bloom7b_kinds", "8xH200", 25), ("gpt2_fsdp", "8xV100-16", 14)]
)
def test_every_named_point_is_planned(
    space: str, cluster: str, fitting: int, capsys: pytest.CaptureFixture[str]
) -> None:
    points = printed_json(capsys, space, "--cluster", cluster)["points"]
    assert [point["point"] for point in points] == [point.name for point in search_spaces.load(space).points]  # type: ignore[union-attr]
    assert sum(point["fits"] for point in points) == fitting  # type: ignore[union-attr]
    assert all(point["tokens_per_s"] > 0 for point in points)  # type: ignore[union-attr]


def test_a_named_point_that_cannot_run_or_fit_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("bloom7b_kinds", "--cluster", "2xH200", "--device-memory-gib", "60")
    points = {point["point"]: point for point in printed_json(capsys, *arguments)["points"]}  # type: ignore[union-attr]
    assert "reshard must divide dp_shard" in points["fsdp_reshard_2"]["reason"]
    assert re.fullmatch(r"out of memory: needs [\d.]+ GiB of 60\.0", points["zero1"]["reason"])
    assert points["fsdp_offload"]["fits"]
    assert main(["bloom7b_kinds", "--cluster", "8xH200", "--min-nodes"]) == 2
    assert "has named points" in capsys.readouterr().err


def test_the_largest_model_grows_with_the_devices(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("gpt2_xl", "--cluster", "p3.8xlarge", "--max-model", "--gpus", "4,8", "--micro-batch", "16")
    rows = printed_json(capsys, *arguments, "--set", "seq_len=128", "--set", "compute_precision=fp16")["max_model"]
    small, large = rows  # type: ignore[misc]
    assert 2.5 < small["params_b"] < 4.5 and 1.7 < large["params_b"] / small["params_b"] < 2.3
    assert small["needed_gib"] > 14 and large["needed_gib"] > 14
    assert large["layers"] > small["layers"] and large["heads"] > small["heads"]
    read = ModelSpec.from_config(large["config"], name="grown")
    assert read.num_parameters / 1e9 == large["params_b"], "what search would measure"


@pytest.mark.parametrize("architecture", architectures.names())
def test_a_spec_s_config_is_read_as_the_spec(architecture: str) -> None:
    sizes = {"num_layers": 3, "hidden_size": 96, "num_heads": 4, "vocab_size": 1000}
    keys = architecture_of(architecture).config_keys
    more = {field: size for field, size in {"ffn_size": 200, "max_positions": 64}.items() if field in keys}
    spec = ModelSpec(name="own", architecture=architecture, **sizes, **more)  # type: ignore[arg-type]
    assert dataclasses.replace(ModelSpec.from_config(spec.to_config(), name="own"), config="") == spec


def test_grown_models_keep_the_width_of_a_head() -> None:
    model = grown(GPT2_XL, 40, 60)
    assert (model.head_dim, model.hidden_size, model.ffn_size, model.num_layers) == (64, 2560, 10240, 60)


@pytest.mark.slow
def test_a_model_of_narrow_heads_grows_on_by_its_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    narrow = {"model_type": "gpt2", "n_layer": 12, "n_embd": 64, "n_head": 64, "vocab_size": 256, "n_positions": 2048}
    path = tmp_path / "narrow.json"
    path.write_text(json.dumps(narrow))
    (row,) = printed_json(capsys, str(path), "--cluster", "1xT4", "--max-model")["max_model"]  # type: ignore[misc]
    assert row["layers"] > 200 and 13 < row["needed_gib"] <= 15


def test_a_length_need_not_be_even(capsys: pytest.CaptureFixture[str]) -> None:
    (recipe,) = printed_json(capsys, "gpt2", "--cluster", "8xH100", "--set", "seq_len=127")["recipes"]  # type: ignore[misc]
    assert recipe["layouts"]


def test_a_batch_ramp_up_takes_more_nodes_with_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("tr3m_1b3", "--cluster", "64xjean-zay-v100", "--batch-rampup")
    phases = printed_json(capsys, *arguments, "32,64,128")["batch_rampup"]
    nodes = [phase["nodes"] for phase in phases]  # type: ignore[union-attr]
    assert nodes == sorted(nodes) and nodes[-1] > nodes[0]


def test_seed_002s_schedules_on_its_own_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    """Compares both schedules, row by row, with the layout of their tables: one replica a device, or two devices a
    replica.

    The first schedule comes out as it was written. In the second the notes take the largest micro-batch that fits, one
    micro-step a step; over two stages half of such a step is bubble, so smaller micro-batches come out ahead. Batch 32
    on 16 nodes leaves a pipeline of two stages one micro-batch, and is refused.
    """
    base = ("tr3m_1b3", "--set", "engine=deepspeed", "--set", "zero_stage=1", "--set", "tp=1")
    base = (*base, "--software", "megatron-deepspeed")  # whose pipelines ran them
    large = (*base, "--set", "pp=1", "--cluster", "32xjean-zay-v100", "--batch-rampup", "32:8,64:16,128:32")
    # Their software splits models under ZeRO-1, which our engine of DeepSpeed does not.
    small = (*base, "--set", "pp=2", "--software", "megatron-deepspeed", "--cluster", "64xjean-zay-v100-16")
    small = (*small, "--batch-rampup", "64:16,128:16,256:32,512:64")
    rampups: list[Any] = [printed_json(capsys, *arguments)["batch_rampup"] for arguments in (large, small)]
    layouts = [
        [(phase["nodes"], phase["global_batch"], phase["micro_batch"]) for phase in rampup] for rampup in rampups
    ]
    assert layouts[0] == [(8, 32, 1), (16, 64, 1), (32, 128, 1)]
    assert layouts[1] == [(16, 64, 1), (16, 128, 1), (32, 256, 1), (64, 512, 1)]


def _llama_405b(folder: Path) -> str:
    """Returns the folder, with Llama 3 405B's configuration in it."""
    sizes = {"num_hidden_layers": 126, "hidden_size": 16384, "num_attention_heads": 128, "num_key_value_heads": 8}
    config = {"model_type": "llama", "intermediate_size": 53248, "vocab_size": 128256, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_405b_s_best_plan_has_the_degrees_that_it_was_trained_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Plans Llama 3 405B on 16,384 H100 (arXiv 2407.21783, table 4), given nothing but the configuration."""
    arguments = (
        _llama_405b(tmp_path),
        "--cluster",
        "2048x8xH100",
        "--set",
        "seq_len=8192",
        "--set",
        "global_batch=2048",
    )
    (recipe,) = printed_json(capsys, *arguments, "--top", "1")["recipes"]  # type: ignore[misc]
    (best,) = recipe["layouts"]
    assert best["layout"].startswith("FSDP2 stage 2, tp 8, pp 16, interleaved, virtual 8, sync last, selective")
    assert best["step_time_s"] == pytest.approx(6.79, rel=0.15) and best["fit_probability"] > 0.5


@pytest.mark.parametrize(
    ("nodes", "seq_len", "global_batch", "degrees"),
    [
        # NVIDIA's recipe of 1,024 devices: tp 8, cp 2, pp 8.
        (128, 8192, 512, {"tp": 8, "cp": 2, "pp": 8}),
        # arXiv 2407.21783, table 4: its degrees at 131,072 tokens.
        (2048, 131072, 128, {"tp": 8, "cp": 16, "pp": 16}),
    ],
)
def test_a_405b_s_published_degrees_with_context_parallelism_over_nodes_are_planned(
    nodes: int,
    seq_len: int,
    global_batch: int,
    degrees: dict[str, int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    stated = {"seq_len": seq_len, "global_batch": global_batch, **degrees}
    changes = [word for axis, value in stated.items() for word in ("--set", f"{axis}={value}")]
    arguments = (_llama_405b(tmp_path), *changes, "--top", "1")
    seconds: list[float] = []
    for network in ("100", "3200"):
        cluster = ("--cluster", f"{nodes}x8xH100@{network}")
        (recipe,) = printed_json(capsys, *arguments, *cluster)["recipes"]  # type: ignore[misc]
        (best,) = recipe["layouts"]
        assert all(f"{axis} {degree}" in best["layout"] for axis, degree in degrees.items())
        seconds.append(best["step_time_s"])
    assert seconds[0] > 1.1 * seconds[1]  # keys and values cross the network


def test_tensor_parallelism_spans_nodes_only_where_it_is_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    (recipe,) = printed_json(capsys, "bloom7b", "--cluster", "4x4xH100")["recipes"]  # type: ignore[misc]
    assert recipe["skipped"]["tp reaches across nodes"] > 0  # of the space's tp 8
    arguments = ("bloom7b", "--set", "tp=16", "--top", "1")
    slow, fast = (
        printed_json(capsys, *arguments, "--cluster", f"2x8xH100@{network}")["recipes"][0]["layouts"][0]  # type: ignore[index]
        for network in (100, 3200)
    )
    assert "tp 16" in slow["layout"] and slow["step_time_s"] > 2 * fast["step_time_s"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("bloom7", "--cluster", "8xH100"), "did you mean bloom7b"),
        (("gpt_1b", "--cluster", "8xH100"), "spaces for planning only: gpt_175b"),
        (("bloom7b", "--cluster", "8xA90"), "near names are .*A100"),
        (("bloom7b", "--cluster", "8xH100", "--gpus", "8..2"), "written 2..3072 or 4,8,16"),
        (("bloom7b", "--cluster", "8xH100", "--tokens", "-1"), "--tokens: must be a number above 0, as in 2e9"),
        (("bloom7b", "--cluster", "8xH100", "--set", "tp=0"), "tp must be at least 1"),
        (
            ("bloom7b", "--cluster", "7xH100", "--set", "pp=1", "--set", "global_batch=512"),
            "runs on 7 x H100.*; with --set global_batch=560 7 devices run FSDP2 stage .*, at [0-9,]+ tokens/s",
        ),
        (
            ("bloom7b", "--cluster", "-1xH100"),
            "expected one argument; one that begins with - is written --OPTION=VALUE",
        ),
        (("bloom7b", "--cluster=-1xH100"), "cluster '-1xH100' has a count below 1"),
        (("bloom7b", "--cluster", "9999999999999999999xH100"), "more than 1,000,000 devices"),
        (("bloom7b", "--cluster", "8xH100", "--gpus", "2..99999999999999999999"), "up to 1,000,000"),
        (("bloom7b", "--cluster", "8xH100", "--tokens", "1e300"), "--tokens must be above 0 and at most"),
        (("bloom7b", "--cluster", "8xH100", "--max-model", "--micro-batch", "99999999999999"), "--micro-batch must be"),
        (("bloom7b", "--cluster", "8xH100", "--micro-batch", "2"), "belongs to --max-model"),
        (("bloom7b", "--cluster", "8xH100", "--max-model", "--min-nodes"), "different questions"),
        (("bloom7b", "--cluster", "8xH100", "--min-nodes", "--gpus", "8"), "--gpus has no effect on --min-nodes"),
        (("tr3m_1b3", "--cluster", "jean-zay-v100", "--batch-rampup", "32;64"), "phases are written BATCH"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert re.search(sentence, error) and error.count("\n") == 1


def test_where_nothing_fits_the_nearest_is_told_and_the_exit_code_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpt_1t", "--cluster", "8xV100"]) == 1
    error = capsys.readouterr().err
    assert re.search("nearest is .*, tp 8.*GiB of 31.7", error) and error.count("\n") == 1


def test_counts_and_phases() -> None:
    assert parse_counts("2..20") == (2, 4, 8, 16, 20)
    assert parse_counts("4,8,16") == (4, 8, 16)
    assert parse_phases("32:8,64") == ((32, 8), (64, None))
    with pytest.raises(InputError):
        parse_counts("0,1")


def test_people_see_tables(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ("bloom7b", "--cluster", "8xH100"),
        ("bloom7b", "--cluster", "4x8xH100", "--gpus", "8,16,32"),
        ("gpt_18b", "--cluster", "dgx-a100", "--min-nodes"),
    ):
        assert main(list(arguments)) == 0
        assert "days" in capsys.readouterr().out
    assert find_cluster("dgx-a100").num_devices == 8


def test_a_layout_s_words_are_read_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns in ("60", "150"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["bloom7b", "--cluster", "8xH100"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "FSDP2 stage 2, sync every, flex, chunked loss, compile block" in shown, columns


def test_every_loser_is_counted_by_what_it_loses_by(capsys: pytest.CaptureFixture[str]) -> None:
    (recipe,) = printed_json(capsys, "gpt_76b", "--cluster", "64xdgx-a100", "--top", "1000")["recipes"]  # type: ignore[misc]
    counts = collections.Counter(layout["loses_by"] for layout in recipe["layouts"] if layout["loses_by"])
    assert recipe["loses_by"] == dict(counts) and {"communication", "compute"} <= set(counts)


def test_a_layout_as_fast_as_the_first_loses_by_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks two that differ by a prefetch alone, which predictions do not know, and which are one row for people."""
    options = ("gpt2_128", "--cluster", "4xH200", "--set", "prefetch=0,1", "--device-memory-gib", "15.8", "--top", "2")
    layouts = printed_json(capsys, *options)["recipes"][0]["layouts"]  # type: ignore[index]
    assert [layout["loses_by"] for layout in layouts] == ["", ""] and "prefetch 1" in layouts[1]["layout"]
    monkeypatch.setenv("COLUMNS", "120")
    assert main([*options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "and 1 that differs in prefetch alone" in printed and "prefetch 1" not in printed


def test_layouts_of_the_same_figures_are_one_row_if_each_axis_changes_nothing_by_itself() -> None:
    layouts = [
        Layout(engine="fsdp", zero_stage=3, dp_shard=2, prefetch=prefetch, loss=loss, attention=attention)
        for attention in ("sdpa", "eager")
        for loss in ("plain", "chunked")
        for prefetch in (0, 1)
    ]
    figures = np.array([[1.0, 40.0]] * 4 + [[1.0, 50.0]] * 2 + [[1.0, 40.0]] * 2)
    rows = list(distinct_rows(np.arange(8), layouts, figures, 3))
    assert [(row, others.words) for row, others in rows] == [
        (0, "and 3 that differ in prefetch or loss"),
        (4, "and 1 that differs in prefetch alone"),
        (6, "and 1 that differs in prefetch alone"),
    ]
    assert not list(distinct_rows(np.arange(0), layouts, figures, 3))


@pytest.mark.parametrize(
    "question", [(), ("--gpus", "4,8"), ("--min-nodes",), ("--max-model",), ("--batch-rampup", "64")]
)
def test_every_answer_says_on_which_devices_and_that_it_is_predicted(
    capsys: pytest.CaptureFixture[str], question: tuple[str, ...]
) -> None:
    assert main(["gpt2", "--cluster", "8xH100", "--device-memory-gib", "40", *question]) == 0
    place = "nodes of 8 x H100-SXM" if question else "8 x H100-SXM"
    shown = " ".join(capsys.readouterr().out.split())
    assert f"on {place} (40.0 GiB), run by layout-search, predicted, nothing measured" in shown


def test_lengths_that_fit_are_planned_beside_those_that_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    long, short = printed_json(
        capsys, "gpt2", "--cluster", "1xV100-16", "--set", "seq_len=1024,64", "--set", "micro_batch=8",
        "--set", "checkpointing=none", "--device-memory-gib", "5",
    )["recipes"]  # type: ignore[misc]  # fmt: skip
    assert not long["layouts"] and "GiB of 5.0" in long["nearest"]
    assert short["layouts"] and not short["nearest"]


def test_a_price_that_is_given_stands_for_the_catalogue_s(capsys: pytest.CaptureFixture[str]) -> None:
    def cost(*more: str) -> float | None:
        (recipe,) = printed_json(capsys, "bloom7b", "--cluster", "8xH100", "--top", "1", *more)["recipes"]  # type: ignore[misc]
        (layout,) = recipe["layouts"]
        return layout["cost"] and layout["cost"] / layout["days"]

    assert cost() is None
    assert cost("--price-per-gpu-h", "2.5") == pytest.approx(2.5 * 8 * 24)


def test_days_against_devices_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "days.png"
    printed_json(capsys, "gpt_7_5b", "--cluster", "64xdgx-a100", "--gpus", "2,8,16,32", "--png", str(picture))
    pixels = matplotlib.image.imread(picture)
    assert pixels.shape[:2] == (1050, 1200)
    band = np.abs(pixels[:, :, :3] - np.array([0xCF, 0xE2, 0xF3]) / 255).max(axis=2) < 0.01
    assert 0.02 < band.mean() < 0.3


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("gpt_7_5b", "--cluster", "64xdgx-a100")
    assert main([*plan, "--png", str(tmp_path / "x.png")]) == 2
    assert main([*plan, "--gpus", "8", "--png", str(tmp_path / "x.txt")]) == 2
    assert main([*plan, "--gpus", "8", "--png", str(tmp_path / "no" / "x.png")]) == 2
    assert main(["gpt_175b", "--cluster", "dgx-a100", "--gpus", "8", "--png", str(tmp_path / "x.png")]) == 2
    lines = capsys.readouterr().err.splitlines()
    parts = ("--gpus alone", "ends in", "folder", "nothing to draw")
    assert all(part in line for part, line in zip(parts, lines, strict=True)), lines
    assert list(tmp_path.iterdir()) == []


def test_a_plan_proposes_no_kernels_that_the_search_refuses() -> None:
    """Checks that the plan's rule over columns, a copy for speed, agrees with `spec.support` on each layout."""
    space = search_spaces.load("bloom7b")
    planned = best_plan(space, space.recipe, find_cluster("4xH200"), top=10_000).best
    cluster = Cluster(device_kind="cuda", device="H200", device_memory_gib=140.0, devices_per_node=4, capability=(9, 0))
    assert len(planned) > 200 and len({predicted_layout.layout.compile for predicted_layout in planned}) > 1
    assert {refusal(space.recipe, predicted_layout.layout, cluster) for predicted_layout in planned} == {None}


def test_a_config_json_is_planned_as_fast_as_the_built_in_space_of_its_model(tmp_path: Path) -> None:
    """Compares the ladders too: that of an own model ended at micro-batch 16, 13 % below the other's best."""
    (tmp_path / "config.json").write_text(json.dumps({**GPT2.to_config(), "activation_function": "gelu_new"}))
    cluster = find_cluster("1xH200")
    of_config, built_in = search_spaces.load(str(tmp_path)).with_changes(["seq_len=1024"]), search_spaces.load("gpt2")
    plans = [best_plan(space, space.recipe, cluster) for space in (of_config, built_in)]
    first, second = (plan.best[0] for plan in plans)
    assert first.micro_batch > 16 and not any(plan.at_ends for plan in plans)
    assert first.tokens_per_s == pytest.approx(second.tokens_per_s, rel=1e-6)


def test_a_best_micro_batch_that_is_the_last_one_listed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("gpt2", "--cluster", "1xH200", "--set", "micro_batch=4,16")
    (recipe,) = printed_json(capsys, *arguments)["recipes"]  # type: ignore[misc]
    (sentence,) = recipe["at_listed_ends"]
    assert re.fullmatch(
        r"micro_batch 16 is the largest value listed: 32 is predicted \d+\.\d % faster \(--set micro_batch=16,32\)",
        sentence,
    )
    assert main([*arguments, "--top", "1"]) == 0
    assert "micro_batch 16 is the largest value listed" in capsys.readouterr().out
