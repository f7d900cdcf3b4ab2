"""The software behind a row of a measurement table, and its engine."""

from collections.abc import Mapping

from platform.cost_model.engines import ENGINES, costs
from platform.cost_model.hardware import THIS_PROJECT
from platform.cost_model.stacks import fact, names
from platform.validate.cells import Row
from platform.validate.facts import STUDIES
from trainers.spec.engines import is_path

STAGES: Mapping[str, int] = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
"""Sharding stage by strategy."""
STRATEGIES = tuple(STAGES)
SHARDED_WHOLE = ("fsdp", "hsdp")
"""Strategies that also shard parameters, by blocks, over all ranks or groups of ranks."""

CURRENT = tuple(name for name in names() if name not in [stack for *_, stack in STUDIES])
"""Software in its present version, without the stacks of single studies."""


def software_of(row: Row) -> str:
    """Returns the software of a row, a name in `stacks.json`; "other" if the row states none.

    Raises:
        ValueError: the row states unknown software.
    """
    software = THIS_PROJECT if row.get("engine") else row.get("software") or "other"
    if software not in names():
        raise ValueError(f"software {software!r} is not one of {', '.join(names())}")
    return software


def stage_of(strategy: str, software: str, stages: float) -> int:
    """Returns the sharding stage of a strategy in a pipeline of `stages`. If the software's FSDP keeps parameters
    gathered between a pipeline's micro-batches, it is stage 2.
    """
    keeps = stages > 1 and strategy in SHARDED_WHOLE and fact(software, "keeps_parameters", True)
    return STAGES[strategy] - bool(keeps)


def data_parallelism_of(row: Row) -> str:
    """Returns the engine: as stated in the project's own tables, else that of the row's software for its strategy."""
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
    return fact(software_of(row), "engines", {})[strategy]
