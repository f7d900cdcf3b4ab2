"""All candidates, each once: in the order given, or shuffled by the seed."""

import dataclasses
import random
from collections.abc import Sequence
from typing import Generic

from platform.searchers.problem import TRIED, C, Problem, Result


class Sweep(Generic[C]):
    """The problem's order, which puts what is likely good first. Whole ladders."""

    why_stopped = TRIED
    whole_ladders = True

    def __init__(self, problem: Problem[C]) -> None:
        self._left = {candidate.key: candidate for candidate in problem.candidates}

    def suggest(self) -> C | None:
        """The first candidate not yet run."""
        return next(iter(self._left.values()), None)

    def update(self, candidate: C, measurements: Sequence[Result]) -> None:
        """Takes the candidate off the list once all its rungs are settled, whatever came back."""
        left = self._left.get(candidate.key)
        if left is not None and set(left.micro_batches) <= set(candidate.micro_batches):
            del self._left[candidate.key]


class Shuffle(Sweep[C]):
    """Every candidate once, in an order drawn from the seed: the baseline every other searcher must beat."""

    def __init__(self, problem: Problem[C]) -> None:
        shuffled = list(problem.candidates)
        random.Random(problem.seed).shuffle(shuffled)
        super().__init__(dataclasses.replace(problem, candidates=shuffled))
