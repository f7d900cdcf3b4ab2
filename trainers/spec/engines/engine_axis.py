"""`EngineAxis`: an axis in one of the engines that have it.

Each such axis has a file in `trainers/spec/engines/axes`, named like the axis. Its `ENGINES` maps engines to an
`EngineAxis`: the stages at which the engine has the axis, refusals, settings for the engine's library and the value
read back. `INSTEAD`, if the file has it, maps engines without the axis to a clause on what they offer instead. Engines,
exports and rules call `axes_of_engine` and name no axis. The axis itself is declared in
`trainers/spec/layout_axes.py`.

`schedule`, `virtual` and `cp_exchange` have no file, because the mesh implements them for all engines that use it
(`EngineRules.axes`).
"""

import dataclasses
import functools
import importlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from trainers.spec.axis import axes_of
from trainers.spec.cluster import Cluster
from trainers.spec.layout_axes import LayoutAxes
from trainers.spec.recipe import Recipe

_FILES = "trainers.spec.engines.axes"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EngineAxis:
    """An axis in one engine. Each engine has a subclass with the methods that its runtime calls."""

    stages: tuple[int, ...]
    """Values of `zero_stage` at which the engine has the axis."""
    elsewhere: str = ""
    """Text on another program's behaviour instead; empty if the engine's own configuration includes the axis."""

    def contradictions(self, layout: LayoutAxes) -> Iterator[str]:
        """Returns sentences on values that contradict the rest of the layout."""
        return iter(())

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        """Returns sentences on why the engine cannot run `recipe` with the layout's value."""
        return iter(())

    def needs(self, layout: LayoutAxes, cluster: Cluster) -> Iterator[str]:
        """Returns sentences on why the devices of `cluster` cannot run the layout's value."""
        return iter(())

    def fewest_shards(self, value: Any) -> int:
        """Returns the smallest `dp_shard` for which the value is valid."""
        return 1


def instead_of(axis: str, engine: str) -> str:
    """Returns what an engine without the axis offers instead, as a clause that begins with a colon, or ""."""
    if find_spec(path := f"{_FILES}.{axis}") is None:
        return ""
    clause = getattr(importlib.import_module(path), "INSTEAD", {}).get(engine, "")
    return f": {clause}" if clause else ""


@functools.cache
def _by_axis() -> Mapping[str, Mapping[str, EngineAxis]]:
    """Returns the axes by name, then by engine, in the order of their declarations."""
    names = [name for name, declared in axes_of(LayoutAxes).items() if declared.of_some_engines]
    return {
        name: importlib.import_module(f"{_FILES}.{name}").ENGINES
        for name in names
        if find_spec(f"{_FILES}.{name}") is not None
    }


@functools.cache
def axes_of_engine(engine: str) -> Mapping[str, EngineAxis]:
    """Returns the engine's axes that have a file, by name."""
    return {name: engines[engine] for name, engines in _by_axis().items() if engine in engines}


def fewest_shards(values: Mapping[str, Any]) -> int:
    """Returns the smallest `dp_shard` for which all these axis values are valid, in any engine."""
    required = [
        engine.fewest_shards(values[name])
        for name, engines in _by_axis().items()
        if name in values
        for engine in engines.values()
    ]
    return max(required, default=1)
