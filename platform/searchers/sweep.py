"""Searchers that try all candidates once, in the given order or shuffled by the seed."""

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import Any, Generic

from platform.searchers.problem import RECIPE, TRIED, C, Observation, Problem


class Sweep(Generic[C]):
    """Suggests whole ladders in the problem's order, likely good candidates first; recipes take turns."""

    stopped_reason = TRIED

    def __init__(self, problem: Problem[C]) -> None:
        recipes: dict[Any, list[C]] = {}
        for candidate in problem.candidates:
            recipes.setdefault(candidate.axes.get(RECIPE), []).append(candidate)
        turns = itertools.zip_longest(*recipes.values())
        self._remaining = {candidate.key: candidate for turn in turns for candidate in turn if candidate is not None}

    def suggest(self, running: Sequence[C] = ()) -> C | None:
        """Returns the first candidate that neither ran nor is `running`."""
        running_keys = {candidate.key for candidate in running}
        return next((candidate for key, candidate in self._remaining.items() if key not in running_keys), None)

    def update(self, candidate: C, measurements: Sequence[Observation]) -> None:
        """Removes the candidate once all its rungs are settled, whatever their outcome."""
        planned = self._remaining.get(candidate.key)
        if planned is not None and set(planned.micro_batches) <= set(candidate.micro_batches):
            del self._remaining[candidate.key]


class Shuffle(Sweep[C]):
    """Suggests every candidate once, in an order drawn from the seed: the baseline for every other searcher."""

    def __init__(self, problem: Problem[C]) -> None:
        shuffled = list(problem.candidates)
        random.Random(problem.seed).shuffle(shuffled)
        super().__init__(dataclasses.replace(problem, candidates=shuffled))
