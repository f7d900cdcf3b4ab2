"""The software that made a row of a measurement table, and its engine, by what the row states."""

import re
from collections.abc import Mapping

from platform.cost_model.engines import ENGINES, costs
from platform.cost_model.hardware import THIS_PROJECT
from platform.cost_model.stacks import fact, names
from platform.validate.rows import Row, words
from trainers.spec.engines import is_path

STAGES: Mapping[str, int] = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
"""Strategy -> sharding stage."""
STRATEGIES = tuple(STAGES)
SHARDED_WHOLE = ("fsdp", "hsdp")
"""Strategies that shard parameters too, over all ranks or groups of them, by blocks."""

_STUDIES = (
    ("other", "aleph alpha", "aleph-alpha"),
    ("megatron-deepspeed", "vtrain", "vtrain"),
    ("torchtitan", r"torchtitan\D{0,20}2024", "torchtitan-2024"),
    ("torchtitan", r"torchtitan\D{0,20}2025", "torchtitan-2025"),
)
"""(software, pattern of words, stack) of studies and years whose software has facts of its own."""
CURRENT = tuple(name for name in names() if name not in [stack for *_, stack in _STUDIES])
"""Software as it is now."""
_WORDS: tuple[tuple[str, str], ...] = (
    (r"llm-foundry|mosaicml", "llm-foundry"),
    (r"torchtitan", "torchtitan"),
    (r"fms-fsdp", "fms-fsdp"),
    (r"nanotron", "nanotron"),
    (r"internevo|internlm", "internevo"),
    (r"litgpt|lit-gpt", "litgpt"),
    (r"lightning", "lightning"),
    (r"hf trainer|hugging ?face", "huggingface"),
    (r"bigscience|megatron-deepspeed|megatron ?\+ ?deepspeed|gpt-?neox", "megatron-deepspeed"),
    (r"megatron-core|nemo\b", "megatron-core"),
    (r"megatron|mt-nlg", "megatron-lm"),
    (r"\bfsdp\b", "fms-fsdp"),
    (r"deepspeed|\bzero\b", "deepspeed"),
)
"""Patterns of words that name a software; the first match counts."""


def software_of(row: Row) -> str:
    """Returns the software of a row: as stated, else by the words of source, strategy and notes.

    Raises:
        ValueError: the row states unknown software.
    """
    if row.get("engine"):
        return THIS_PROJECT
    if row.get("software") and row["software"] not in names():
        raise ValueError(f"software {row['software']!r} is not one of {', '.join(names())}")
    text = words(row)
    if row.get("software"):
        studies = (stack for name, pattern, stack in _STUDIES if name == row["software"] and re.search(pattern, text))
        return next(studies, row["software"])
    if "bigscience" in text and row["strategy"] == "ddp" and ("megatron-lm" in text or "ds=n" in text):
        return "megatron-lm"  # the runs with Megatron-LM alone or DeepSpeed off
    patterns = (*(study[1:] for study in _STUDIES), *_WORDS)
    return next((name for pattern, name in patterns if re.search(pattern, text)), "other")


def stage_of(strategy: str, software: str, pp: float) -> int:
    """Returns the sharding stage of a strategy beside `pp` pipeline stages: of a software whose FSDP keeps parameters
    gathered between a pipeline's micro-batches, stage 2.
    """
    keeps = pp > 1 and strategy in SHARDED_WHOLE and fact(software, "keeps_parameters", True)
    return STAGES[strategy] - bool(keeps)


def data_parallelism_of(row: Row) -> str:
    """Returns the engine's name: as stated in the project's own tables, else the engine of the row's software for its
    strategy.
    """
    strategy = row["strategy"]
    if strategy not in STRATEGIES:
        raise ValueError(
            f"strategy {strategy!r} is not one of {', '.join(STRATEGIES)}" if strategy else "strategy not stated"
        )
    if row.get("engine"):
        if costs(row["engine"]) is None:
            outside = ": --engine names one outside this project" if is_path(row["engine"]) else ""
            raise ValueError(f"engine {row['engine']!r} is not one of {', '.join(ENGINES)}{outside}")
        return row["engine"]
    software = software_of(row)
    if software == "megatron-deepspeed" and strategy == "ddp" and "bigscience" in words(row):
        return "deepspeed"  # its runs use DeepSpeed's engine at stage 0 too
    return fact(software, "engines", {})[strategy]
