"""Cases of the contract that run at every change; the others run with `-m heavy`."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


class _OfLayout(Protocol):
    @property
    def recipe(self) -> Recipe: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def fault(self) -> str: ...


def covering(cases: Sequence[_OfLayout]) -> list[bool]:
    """Returns for each case whether it is one of those, as few as a greedy choice finds, in which each value of each
    axis of layout and recipe, and each fault, runs at each engine and stage at which it runs in any case.
    """
    facts = [_facts(case) for case in cases]
    missing, chosen = set[tuple[object, ...]]().union(*facts), [False] * len(cases)
    while missing:
        best = max(range(len(cases)), key=lambda place: len(facts[place] & missing))
        chosen[best] = True
        missing -= facts[best]
    return chosen


def _facts(case: _OfLayout) -> set[tuple[object, ...]]:
    axes = {**_fields(case.recipe), **_fields(case.layout), "model": case.recipe.model.name, "fault": case.fault}
    axes["climbs"] = getattr(case, "climbs", False)
    return {(case.layout.engine, case.layout.zero_stage, name, value) for name, value in axes.items()}


def _fields(of: Recipe | Layout) -> dict[str, object]:
    return {field.name: getattr(of, field.name) for field in dataclasses.fields(of)}
