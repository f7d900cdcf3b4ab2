"""Stacks: facts on a published run's software that its rows do not state, by software (`stacks.json`).

One software is one stack for all degrees. Every fact has its source and the tables that determined it. A row names its
software in the column `software`; if it is blank, words in source and notes determine it.
"""

import contextlib
import dataclasses
import functools
import math
import pathlib
import statistics
from collections.abc import Generator
from typing import Any

from platform.common.errors import InputError
from platform.cost_model.hardware import ClusterSpec
from trainers.records.plain_files import read_json

_FILE = pathlib.Path(__file__).with_name("stacks.json")


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """Returns the file's content: facts on engines, the meanings of the stacks' facts, and the stacks."""
    return read_json(_FILE, links=True)


@functools.cache
def names() -> tuple[str, ...]:
    """Returns the names of software with a stack."""
    return tuple(table()["stacks"])


def has(engine: str, fact: str) -> bool:
    """Returns whether `fact` holds for an engine's data parallelism in published rows. No fact holds for an engine
    outside this project, because its rows state everything.
    """
    return fact in table()["engines"].get(engine, {})


COUNTED = (
    "host_forward_s",
    "host_backward_s",
    "host_pipe_s",
    "stall_chance",
    "stall_chance_data",
    "stall_exchange_s",
    "sigma",
)
"""Facts that cannot be estimated from other stacks; unmeasured, the first two follow from a block's kernel count."""
_left_out: list[str] = []
"""Tables whose evidence is excluded; see `without`."""


@contextlib.contextmanager
def without(*names: str) -> Generator[None]:
    """Excludes within its context every fact that was fitted to one of the tables `names`. A stack then has the fact of
    the stack in its `like`, else, for a number, the median over the other stacks; it has none of the facts in
    `COUNTED`.
    """
    _left_out.extend(names)
    _facts.cache_clear()
    try:
        yield
    finally:
        del _left_out[len(_left_out) - len(names) :]
        _facts.cache_clear()


def tables_of(software: str) -> set[str]:
    """Returns the tables used to fit facts of this software or of software that shares its code (`like`)."""
    every = table()["stacks"]
    akin = [facts for name, facts in every.items() if _root(name) == _root(software)]
    return {
        name for facts in akin for fact, entry in facts.items() if fact != "like" for name in entry.get("tables", ())
    }


def _root(software: str) -> str:
    facts = table()["stacks"][software]
    return _root(facts["like"]) if "like" in facts else software


@functools.cache
def _facts(software: str) -> dict[str, Any]:
    """Returns the facts of one stack by name, including those of the stack in its `like`."""
    entries = table()["stacks"][software]
    facts = dict(_facts(entries["like"])) if "like" in entries else {}
    for name, entry in entries.items():
        if name == "like":
            continue
        if not set(entry.get("tables", ())) & set(_left_out):
            facts[name] = entry["value"]
        elif name in COUNTED:
            facts.pop(name, None)
        elif name not in facts and isinstance(entry["value"], float):
            others = [stack[name] for stack in table()["stacks"].values() if name in stack and stack is not entries]
            values = [other["value"] for other in others if not set(other.get("tables", ())) & set(_left_out)]
            facts |= {name: statistics.median(values)} if values else {}
    return facts


def fact(software: str, name: str, default: Any) -> Any:
    """Returns the value of the fact `name` for `software`; `default` if its stack does not state it."""
    return _facts(software).get(name, default)


def runs(software: str) -> dict[str, tuple[str, ...]]:
    """Returns the strategies of other software, each with the degrees of model parallelism (tp, pp, cp, and virtual
    stages) that it supports.
    """
    return {strategy: tuple(degrees) for strategy, degrees in fact(software, "runs", {}).items()}


def matmul_ratio(software: str, architecture: str) -> tuple[float, float]:
    """Returns (rate of products relative to a device of this architecture, log deviation of this ratio): as the stack
    states it, else the geometric mean and the standard deviation over the stacks that state it.
    """
    stated = fact(software, "matmul_ratio", {})
    if architecture in stated:
        return float(stated[architecture]), 0.0
    entries = (stack["matmul_ratio"] for stack in table()["stacks"].values() if "matmul_ratio" in stack)
    values = (entry["value"] for entry in entries if not set(entry.get("tables", ())) & set(_left_out))
    logs = [math.log(value[architecture]) for value in values if architecture in value]
    return math.exp(statistics.fmean(logs or [0.0])), statistics.stdev(logs) if len(logs) > 1 else 0.0


def flash_ratio(software: str, architecture: str) -> float | None:
    """Returns the rate of fused attention relative to a device of this architecture for a stack with its own kernel;
    None if rows state their kernel.
    """
    return fact(software, "flash_ratio", {}).get(architecture)


def find_software(name: str) -> str:
    """Returns the name of the stack that `name` spells in any case.

    Raises:
        InputError: there is no such stack.
    """
    if name.lower() not in names():
        raise InputError(f"unknown software {name!r}: there are {', '.join(names())}; `other` stands for the rest")
    return name.lower()


def with_software(cluster: ClusterSpec, software: str) -> ClusterSpec:
    """Returns `cluster` with `software`, at the rates that the software sustains on the devices."""
    device = cluster.device
    return dataclasses.replace(
        cluster,
        software=software,
        device=dataclasses.replace(
            device,
            matmul_share=device.matmul_share * matmul_ratio(software, device.architecture)[0],
            flash_share=device.flash_share * (flash_ratio(software, device.architecture) or 1.0),
        ),
    )
