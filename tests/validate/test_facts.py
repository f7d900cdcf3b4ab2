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
    ("words", "column", "meant"),
    [
        ("full checkpointing no offload", "checkpoint_inputs", ""),
        ("activation offload: no", "checkpoint_inputs", ""),
        ("activation offload=0", "checkpoint_inputs", ""),
        ("no activation offloading", "checkpoint_inputs", ""),
        ("without activation checkpoint offload", "checkpoint_inputs", ""),
        ("activation checkpointing and offload_optimizer", "checkpoint_inputs", ""),
        ("checkpointing without offload", "checkpoint_inputs", ""),
        ("activation offload", "checkpoint_inputs", "host"),
        ("activation checkpointing with offload", "checkpoint_inputs", "host"),
        ("checkpoint cpu offloading", "checkpoint_inputs", "host"),
        ("offloads the activations", "checkpoint_inputs", "host"),
        ("activation checkpointing and offload_optimizer", "offload", "optimizer"),
        ("overlap_grad_reduce on tp overlap off", "dp_overlap", "yes"),
        ("overlap_grad_reduce=0", "dp_overlap", "no"),
        ("overlap_grad_reduce=1, overlap_p2p=0", "dp_overlap", "yes"),
        ("--overlap-grad-reduce not set", "dp_overlap", "no"),
        ("overlap grad reduce is off", "dp_overlap", "no"),
        ("overlap_param_gather: none", "dp_overlap", "no"),
        ("overlap all-reduce: disabled", "dp_overlap", "no"),
        ("without overlap", "dp_overlap", "no"),
        ("overlap_grad_reduce", "dp_overlap", "yes"),
        ("overlap of gradient reduction", "dp_overlap", "yes"),
    ],
)
def test_words_state_what_they_stand_beside(words: str, column: str, meant: str) -> None:
    assert normalized({**PRINTED_ROW, "notes": words}).get(column, "") == meant


@pytest.mark.parametrize(
    ("words", "software"),
    [
        ("Megatron-DeepSpeed, 2023", "megatron-deepspeed"),
        ("A100 Tensor Core GPUs, 2024", "other"),
        ("torchtitan on H100 Tensor Core GPUs, 2024", "torchtitan"),
        ("llm-foundry, as in MLPerf", "llm-foundry"),
        ("MLPerf training", "nemo"),
        ("Megatron-LM on DGX Cloud", "megatron-lm"),
        ("Megatron-Core, 2024", "megatron-core-2024"),
        ("Megatron-LM README 2024", "megatron-core-2024"),
        ("FlagScale", "megatron-core-2024"),
        ("NeMo 25.02 on DGX Cloud", "nemo"),
        ("vTrain measured data", "vtrain"),
        ("BigScience", "bigscience"),
        ("Aleph Alpha", "aleph-alpha"),
        ("KempnerForge, after torchtitan", "kempnerforge"),
    ],
)
def test_a_study_is_found_by_the_software_of_its_words(words: str, software: str) -> None:
    assert normalized({**PRINTED_ROW, "software": "", "source": words, "notes": ""})["software"] == software


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
