"""Words of a row are read once, into columns, and physics comes from columns alone."""

import csv
from pathlib import Path

import pytest

from platform.validate.facts import normalized
from platform.validate.published_run import interpret
from platform.validate.rows import read_rows
from tests.cost_model.points import PRINTED_ROW, TABLES

ROOT = Path(__file__).parents[2]
OWN = sorted((ROOT / "docs" / "measurements").glob("*.csv"))
WORDLESS = {"source": "", "notes": ""}
READERS_OF_WORDS = {
    "platform/validate/facts.py",
    "platform/validate/validation_tables.py",  # prints the note of a row that contradicts itself
}


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.csv")), ids=lambda path: path.stem)
def test_stored_tables_state_their_facts_in_columns(path: Path) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            assert normalized({**row, **WORDLESS}) == {**normalized(row), **WORDLESS}


@pytest.mark.parametrize("path", [*sorted(TABLES.glob("*.csv")), *OWN], ids=lambda path: path.stem)
def test_words_decide_nothing_once_a_row_is_read(path: Path) -> None:
    row = next(row for row in read_rows(path) if row["status"])
    run, wordless = interpret(row), interpret({**row, **WORDLESS})
    assert (wordless.values, wordless.layout, wordless.cluster) == (run.values, run.layout, run.cluster)
    assert normalized(row) == row


def test_words_are_read_in_one_place() -> None:
    files = [*(ROOT / "platform" / "validate").rglob("*.py"), *(ROOT / "platform" / "cost_model").rglob("*.py")]
    readers = {path.relative_to(ROOT).as_posix() for path in files if '"notes"' in path.read_text(encoding="utf-8")}
    assert readers == READERS_OF_WORDS


@pytest.mark.parametrize(
    ("words", "column", "meant", "stated"),
    [
        ("full CPU offload", "offload", "all", "none"),
        ("optimizer offload", "offload", "optimizer", "all"),
        ("BigScience, jean-zay-a100", "launch_blocking", "yes", "no"),
        ("HF Trainer", "bucket_sizes", "auto", "default"),
        ("checkpoint-num-layers=4", "checkpoint_blocks", "4", "2"),
        ("PA_CPU=Y", "checkpoint_inputs", "host", "device"),
        ("PA_CPU=Y, no checkpoint-in-cpu", "checkpoint_inputs", "split", "host"),
        ("partition-activations", "checkpoint_inputs", "split", "device"),
        ("800 Gbps inter-node", "node_gbps", "800", "400"),
        ("FLOPs by palm", "flops", "palm", "6n"),
        ("hardware FLOPs", "flops", "megatron_hardware", "6n"),
        ("Selene", "node", "dgx-a100", "jean-zay-a100"),
        ("nanotron", "software", "nanotron", "litgpt"),
    ],
)
def test_a_stated_cell_stands_whatever_the_words(words: str, column: str, meant: str, stated: str) -> None:
    printed = {**PRINTED_ROW, "notes": words, "source": ""}
    read = normalized(printed)
    assert read[column] == meant and column in read["from_words"].split(";")
    read = normalized({**printed, column: stated})
    assert read[column] == stated and column not in read["from_words"].split(";")


@pytest.mark.parametrize(
    "words", ["", "CPU offload: no", "without offload", "no partition-activations", "pa_cpu=n", "torch.compile"]
)
def test_words_that_deny_say_nothing(words: str) -> None:
    assert normalized({**PRINTED_ROW, "notes": words})["from_words"] == "software;matmul_precision"


@pytest.mark.parametrize(
    ("column", "word"),
    [
        ("offload", "half"),
        ("flops", "all"),
        ("mlp", "fast"),
        ("cuda_graphs", "maybe"),
        ("node", "dgx"),
        ("checkpoint_inputs", "away"),
    ],
)
def test_a_word_that_a_column_does_not_have_is_named(column: str, word: str) -> None:
    with pytest.raises(ValueError, match=f"{column} '{word}' is not one of "):
        interpret(normalized({**PRINTED_ROW, column: word}))
