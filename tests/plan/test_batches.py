"""A plan's batch: an assumed one never makes a cluster impossible, a stated one stays, and advice was tried."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import search_spaces
from platform.plan.__main__ import main
from platform.search.__main__ import main as search
from search_spaces.shared_batch import MOST_TOKENS


def test_counts_that_a_cluster_has_not_do_not_change_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("gpt2", "--cluster", "8xH100", "--set", "attention=sdpa", "--set", "engine=ddp", "--gpus")
    alone, beside = (answer(capsys, *arguments, counts) for counts in ("7", "7,9,11,13"))
    assert beside["assumptions"] == alone["assumptions"] and beside["gpus"][0] == alone["gpus"][0]
    assert "not whole nodes" in beside["gpus"][1]["reason"]


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Returns the file of a space whose batch nothing states, as that of a config.json."""
    path = tmp_path / "small.py"
    path.write_text(
        "import dataclasses\n"
        "from search_spaces.qwen3 import qwen3_8b\n"
        "def space():\n"
        "    base = qwen3_8b()\n"
        "    recipe = dataclasses.replace(base.recipe, seq_len=2048, global_batch=512)\n"
        "    kernels = {'attention': ('sdpa',), 'checkpointing': ('none', 'full')}\n"
        "    splitting = {**base.model_parallel, **kernels}\n"
        "    return dataclasses.replace(base, name='small', recipe=recipe, assumed=('global_batch',),\n"
        "        axes={**base.axes, **kernels, 'compile': ('block',)}, model_parallel=splitting)\n"
    )
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Returns the JSON object of a plan."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("cluster", ("3x8xH100", "7xH100"))
def test_one_assumed_batch_for_all_rows(capsys: pytest.CaptureFixture[str], small: str, cluster: str) -> None:
    printed = answer(capsys, small, "--cluster", cluster)
    assumed = printed["assumptions"]["global_batch"]
    (recipe,) = printed["recipes"]
    batches = {round(row["tokens_per_s"] * row["step_time_s"] / 2048) for row in recipe["layouts"]}
    assert assumed["source"] == "by default" and batches == set(assumed["values"])
    assert all(row["tokens_per_s"] > 0 for row in recipe["layouts"])


def test_a_table_by_devices_has_no_holes_and_one_batch(capsys: pytest.CaptureFixture[str], small: str) -> None:
    printed = answer(capsys, small, "--cluster", "8xH100", "--gpus", "3,5,6,7,24")
    batches = {round(row["tokens_per_s"] * row["step_time_s"] / 2048) for row in printed["gpus"]}
    assert batches == set(printed["assumptions"]["global_batch"]["values"]) and len(batches) == 1


def test_a_built_in_space_s_batch_is_an_assumption_alike_in_plan_and_search(capsys: pytest.CaptureFixture[str]) -> None:
    printed = answer(capsys, "gpt2", "--cluster", "3xH100", "--top", "1")
    assert printed["assumptions"]["global_batch"] == {"values": [528], "source": "by default"}
    space = search_spaces.load("gpt2").with_shared_batch((3,))
    assert space.recipe.global_batch == 528 and space.assumption == "global_batch 528 by default: change with --set"
    assert space.candidates(3)[0]
    assert search(["gpt2", "--gpus", "3", "--dry-run"]) == 0


def test_the_fewest_nodes_share_an_assumed_batch(capsys: pytest.CaptureFixture[str], small: str) -> None:
    cluster = ("--cluster", "1xH100", "--device-memory-gib", "32", "--set", "checkpointing=full", "--set", "pp=1")
    fewest = answer(capsys, small, *cluster, "--set", "tp=1", "--set", "offload=none", "--min-nodes")["min_nodes"]
    assert fewest["nodes"] in (5, 6, 7) and fewest["fewer_with_another_batch"] is None
    first, *_ = fewest["against_nodes"]
    batch = first["tokens_per_s"] * first["step_time_s"] / 2048
    assert batch == pytest.approx(fewest["global_batch"]) and fewest["global_batch"] % fewest["nodes"] == 0


def test_advice_is_a_batch_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("gpt2", "--cluster", "3xH100")
    assert main([*arguments, "--set", "global_batch=512"]) == 2
    batch = re.search(r"with --set (global_batch=\d+) 3 devices run .*, at ([\d,]+) tokens/s", capsys.readouterr().err)
    assert batch is not None
    (recipe,) = answer(capsys, *arguments, "--set", batch[1])["recipes"]
    assert f"{recipe['layouts'][0]['tokens_per_s']:,.0f}" == batch[2]
    assert search(["gpt2", "--gpus", "3", "--set", "global_batch=512", "--dry-run"]) == 2
    assert f"3 devices would share --set {batch[1]}" in capsys.readouterr().err


def test_no_advice_exceeds_64_million_tokens(capsys: pytest.CaptureFixture[str], small: str) -> None:
    arguments = (small, "--set", "seq_len=131072", "--set", "global_batch=2", "--set", "pp=1", "--set", "cp=1")
    assert main([*arguments, "--cluster", "128x8xH100"]) == 2
    error = capsys.readouterr().err
    batches = [int(batch) for batch in re.findall(r"global_batch=(\d+)", error)]
    assert all(batch * 131_072 <= MOST_TOKENS for batch in batches)
