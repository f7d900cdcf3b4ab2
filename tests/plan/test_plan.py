"""Answers of `python -m platform.plan` to each question, and bad input."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import search_spaces
from platform.common.errors import InputError
from platform.cost_model.predict import SURE
from platform.plan.__main__ import main
from platform.plan.max_model import grown
from platform.plan.sizes import parse_counts, parse_phases
from search_spaces.gpt2 import GPT2_XL
from trainers.spec import architectures
from trainers.spec.architectures import architecture_of
from trainers.spec.model import ModelSpec


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


_SIZES = {"ffn_size": 200, "shared_ffn_size": 96, "max_positions": 64, "num_experts": 8, "experts_per_token": 2}


@pytest.mark.parametrize("architecture", architectures.names())
def test_a_spec_s_config_is_read_as_the_spec(architecture: str) -> None:
    sizes = {"num_layers": 3, "hidden_size": 96, "num_heads": 4, "vocab_size": 1000}
    keys = architecture_of(architecture).config_keys
    more = {field: size for field, size in _SIZES.items() if field in keys}
    spec = ModelSpec(name="own", architecture=architecture, **sizes, **more)  # type: ignore[arg-type]
    assert dataclasses.replace(ModelSpec.from_config(spec.to_config(), name="own"), config="") == spec


def test_grown_models_keep_the_width_of_a_head() -> None:
    model = grown(GPT2_XL, 40, 60)
    assert (model.head_dim, model.hidden_size, model.ffn_size, model.num_layers) == (64, 2560, 10240, 60)


@pytest.mark.slow
@pytest.mark.heavy
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
