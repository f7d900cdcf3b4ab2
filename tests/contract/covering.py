"""Which cases of the contract run at every change, which with `-m heavy` alone, and the groups of ranks they share."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pytest

from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


class _CaseOfLayout(Protocol):
    """A run of a layout, with a planted `fault` or none; `heavy` if it runs with `-m heavy` alone."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def recipe(self) -> Recipe: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def fault(self) -> str: ...
    @property
    def heavy(self) -> bool: ...
    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=_CaseOfLayout)


def covering(cases: Sequence[C]) -> list[C]:
    """Returns the cases, all of them heavy but a greedy cover, in which each value of each axis of layout and recipe,
    and each fault, runs at each engine and stage at which it runs in any case.
    """
    facts = [_facts(case) for case in cases]
    missing, light = set[tuple[object, ...]]().union(*facts), set[int]()
    while missing:
        best = max(range(len(cases)), key=lambda place: len(facts[place] & missing))
        light.add(best)
        missing -= facts[best]
    return [dataclasses.replace(case, heavy=place not in light) for place, case in enumerate(cases)]


def _facts(case: _CaseOfLayout) -> set[tuple[object, ...]]:
    own = {field.name: getattr(case, field.name) for field in dataclasses.fields(case)}
    for of in (own.pop("recipe"), own.pop("layout")):
        own |= {field.name: getattr(of, field.name) for field in dataclasses.fields(of)}
    return {(case.layout.engine, case.layout.zero_stage, *fact) for fact in own.items()}


def parameters(cases: Iterable[_CaseOfLayout]) -> list[Any]:
    """Returns the cases as parameters of a test, with their names and marks."""
    return [
        pytest.param(case, id=f"{case.layout.world_size} ranks: {case.name}", marks=[pytest.mark.heavy] * case.heavy)
        for case in cases
    ]


class Groups(Generic[C]):
    """Results of cases. The first one that is asked for runs all that take as many ranks and are as heavy."""

    def __init__(self, run: Callable[[list[C], int], list[dict[str, Any]]], cases: Iterable[C]) -> None:
        """Takes what runs cases on a number of ranks, and every case."""
        self._run = run
        self._cases: dict[tuple[int, bool], list[C]] = {}
        self._results: dict[tuple[int, bool], list[dict[str, Any]]] = {}
        for case in cases:
            self._cases.setdefault((case.layout.world_size, case.heavy), []).append(case)

    def result(self, case: C) -> dict[str, Any]:
        """Returns the case's result; fails the test with its error if it has none."""
        group = case.layout.world_size, case.heavy
        if group not in self._results:
            self._results[group] = self._run(self._cases[group], case.layout.world_size)
        result = self._results[group][self._cases[group].index(case)]
        if "error" in result:
            pytest.fail(result["error"])
        return result
