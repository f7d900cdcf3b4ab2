"""`plan --balance`: the best layout by how unevenly tokens choose experts."""

import json
from pathlib import Path
from typing import Any

import pytest

from platform.common.errors import InputError
from platform.plan.__main__ import main
from platform.plan.balances import parse_balances
from tests.plan.test_plan import printed_json

CONFIG = {
    "model_type": "olmoe",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 1024,
}
ON_8 = ("--cluster", "8xH100", "--set", "micro_batch=4", "--set", "global_batch=64")


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_layouts_whose_ranks_share_experts_out_get_slower_and_others_do_not(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for ep, slower in (("8", True), ("1", False)):
        rows: Any = printed_json(capsys, config, *ON_8, "--set", f"ep={ep}", "--balance", "1,1.5,3")["balances"]
        assert [row["balance"] for row in rows] == [1.0, 1.5, 3.0]
        seconds = [row["step_time_s"] for row in rows]
        assert (seconds[0] < seconds[1] < seconds[2]) if slower else (seconds[0] == seconds[1] == seconds[2])


def test_the_table_says_what_its_first_column_is(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([config, *ON_8, "--set", "ep=2", "--balance", "1,2"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "balance: rows that the fullest rank has for its experts over the mean" in printed
    assert "ep 2" in printed


@pytest.mark.parametrize("written", ["", "0.5", "1,two", "nan", "1e9"])
def test_what_is_no_balance_is_refused(written: str) -> None:
    with pytest.raises(InputError, match=r"--balance takes numbers from 1 to 1000, as in 1,1\.3,2, got"):
        parse_balances(written)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("gpt2", "--balance", "1,2"), "--balance is for a model with experts, gpt2 has none: leave it out"),
        (
            ("qwen3_30b_a3b", "--balance", "1", "--gpus", "8,16"),
            "--gpus has no effect on --balance, which is for one number of devices: leave it out",
        ),
    ],
)
def test_a_question_that_has_no_answer_is_refused(
    options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options, "--cluster", "8xH100"]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
