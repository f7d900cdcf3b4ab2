"""The strategies of a comparison: files and changes to the first one, and those refused before anything is started."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

import platform.train.converging.command as converge  # pyright takes `from platform import` for the standard module
from platform.common.errors import InputError
from platform.train.converging.rates import Rate, Rates
from platform.train.converging.strategies import Strategy, check_same_data, read_strategies
from tests.training.layout_file import write_layout
from tests.training.values import DDP, FSDP, MODEL, RECIPE, plan
from trainers.records.data_content import ContentFile, DataContent
from trainers.records.training import Validation


def strategies(folder: Path, *targets: str) -> list[Strategy]:
    return read_strategies(converge.PARSER.read([*targets, "--steps", "10", "--studies", str(folder)]))


@pytest.fixture
def fsdp(tmp_path: Path) -> str:
    return str(write_layout(tmp_path / "fsdp.json", FSDP))


@pytest.fixture
def ddp(tmp_path: Path) -> str:
    return str(write_layout(tmp_path / "ddp.json", DDP))


def test_the_four_strategies_of_one_command(tmp_path: Path, fsdp: str):
    parsed = strategies(
        tmp_path, fsdp, "engine=deepspeed,zero_stage=2", "engine=ddp,optimizer=adafactor", "grad_accum=256"
    )
    labels = [strategy.layout.label.split(",")[0] for strategy in parsed]
    assert labels == ["FSDP2 stage 3", "ZeRO-2", "DDP", "FSDP2 stage 3"]
    assert [strategy.recipe.optimizer for strategy in parsed] == ["adamw", "adamw", "adafactor", "adamw"]
    assert [strategy.recipe.global_batch for strategy in parsed] == [4, 4, 4, 2 * 2 * 256]
    assert parsed[3].batch.grad_accum == 256 and not parsed[3].recipe.grad_accum
    assert all(strategy.layout.world_size == 2 for strategy in parsed)
    assert parsed[0].mathematics == parsed[1].mathematics != parsed[2].mathematics


def test_a_change_keeps_the_rest_of_the_first(tmp_path: Path, ddp: str):
    plain, changed = strategies(tmp_path, ddp, "compression=powersgd_2")
    assert changed.layout == plain.layout and changed.batch == plain.batch
    assert changed.recipe == dataclasses.replace(plain.recipe, compression="powersgd_2")


def test_a_strategy_that_states_a_learning_rate_takes_it(tmp_path: Path, ddp: str):
    high = dataclasses.replace(RECIPE, learning_rate=0.5)
    other = str(write_layout(tmp_path / "high.json", DDP, recipe=high))
    stated = ["optimizer=adafactor,learning_rate=3e-4", "grad_accum=256, learning_rate = 1e-2", other]
    plain, by_rule, *with_own_rate = strategies(tmp_path, ddp, "grad_accum=256", *stated)
    rates = Rates(tmp_path / "rates.json")
    assert rates.lookup(plain) is None and rates.lookup(by_rule) is None
    # The rule would have multiplied the second's rate. A file's is stated where it differs.
    chosen_rates = [rates.lookup(strategy) for strategy in with_own_rate]
    assert chosen_rates == [Rate(value=value, source="as stated") for value in (3e-4, 1e-2, 0.5)]
    assert strategies(tmp_path, ddp, str(write_layout(tmp_path / "same.json", FSDP)))[1].has_own_rate is False


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ("optimiser=adafactor", "unknown axis 'optimiser'"),
        ("optimizer=lion", "must be one of|takes"),
        ("optimizer=adafactor", "FSDP2's sharded ones"),
        ("learning_rate=1e-3,", "needs axis=value"),
        ("zero_stage=2,zero_stage=3", "given twice"),
    ],
)
def test_a_change_that_cannot_be_is_one_sentence(tmp_path: Path, fsdp: str, changes: str, reason: str):
    with pytest.raises(InputError, match=reason):
        strategies(tmp_path, fsdp, changes)


def test_a_change_needs_something_to_change(tmp_path: Path):
    with pytest.raises(InputError, match="none comes before it"):
        strategies(tmp_path, "optimizer=adafactor")


def test_names_are_unlike(tmp_path: Path, fsdp: str):
    with pytest.raises(InputError, match="two strategies are called fsdp"):
        strategies(tmp_path, fsdp, fsdp)


def test_models_are_equal(tmp_path: Path, fsdp: str):
    wider = dataclasses.replace(MODEL, name="wider", hidden_size=32)
    other = write_layout(tmp_path / "other.json", DDP, recipe=dataclasses.replace(RECIPE, model=wider))
    with pytest.raises(InputError, match="losses compare between equal models"):
        strategies(tmp_path, fsdp, str(other))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data_order": "file"}, "fsdp has data_order shuffled, other file: give both the same data_order"),
        ({"trained_tokens": "marked"}, "fsdp has trained_tokens all, other marked: give both"),
        ({"attention_mask": "document"}, "fsdp has attention_mask causal, other document: give both"),
    ],
)
def test_losses_are_of_the_same_tokens(change: dict[str, Any], sentence: str, tmp_path: Path, fsdp: str):
    other = write_layout(tmp_path / "other.json", DDP, recipe=dataclasses.replace(RECIPE, **change))
    with pytest.raises(InputError, match=f"losses compare over the same tokens: .*{sentence}"):
        strategies(tmp_path, fsdp, str(other))


def content(path: str, sha256: str = "a", **fields: Any) -> DataContent:
    file = ContentFile(name=path, size_bytes=9, modified_ns=0, sha256=sha256)
    defaults: dict[str, Any] = {"tokens": 9, "vocab_size": 9, "end_of_document": None, "block_sha256": ("b",)}
    return DataContent(files=(file,), **{**defaults, **fields})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"data_content": content("elsewhere")}, ""),
        ({"data_content": content("elsewhere", sha256="")}, ""),
        ({"data_content": content("tokens", tokens=8)}, "b has other data than a (8 tokens in place of 9): give"),
        ({"data_content": content("tokens", sha256="c")}, "b has other data than a (tokens holds other bytes)"),
        ({"data_content": content("tokens", block_sha256=("c",))}, "(1 of 1 blocks that were compared hold other byte"),
        ({"data_content": None, "recipe": dataclasses.replace(RECIPE, data="stream", data_order="file")},
         "b has other data than a (stream in place of included)"),
        ({"validation": Validation(sequences=6, every_tokens=80)}, "b holds out 6 sequences, a 7: give --val-tokens"),
        ({"validation_content": content("v"), "validation": Validation(sequences=7, every_tokens=80, data="v")},
         "b has other held-out data than a"),
    ],
)  # fmt: skip
def test_data_are_the_same_by_what_they_hold(fields: dict[str, Any], sentence: str):
    other: dict[str, Any] = {"data_content": content("tokens"), **fields}
    plans = {"a": plan(data_content=content("tokens")), "b": plan(**other)}
    if not sentence:
        check_same_data(plans)
        return
    with pytest.raises(InputError, match=re.escape(sentence)):
        check_same_data(plans)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--steps", "0"), "must be a whole number of at least 1"),
        (("--steps", "10", "--seeds", "many"), "must be a whole number"),
        (("--steps", "3", "--out", "/proc/none"), "tokens a step, the whole comparison has|cannot be made"),
        (("--steps", "10", "--data", "nowhere"), "nowhere"),
    ],
)
def test_a_mistake_in_the_options_is_one_sentence(
    ddp: str, arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
):
    assert converge.main([ddp, "grad_accum=256", *arguments]) == 2
    output_lines = capsys.readouterr().err.strip().splitlines()
    assert output_lines[-1].startswith("error: ") and any(part in output_lines[-1] for part in reason.split("|"))
