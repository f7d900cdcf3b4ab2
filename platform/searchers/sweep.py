"""All candidates, each once: in the space's own order, or shuffled by the seed."""

import random
from collections.abc import Sequence

from search_spaces.space import Candidate
from trainers.measurement import Measurement


class Sweep:
    """The space's order, which puts what is likely good first."""

    def __init__(self, candidates: Sequence[Candidate], seed: int) -> None:
        self._left = {candidate.key: candidate for candidate in candidates}

    def suggest(self) -> Candidate | None:
        """The first candidate not yet run."""
        return next(iter(self._left.values()), None)

    def update(self, candidate: Candidate, measurements: Sequence[Measurement]) -> None:
        """Takes the candidate off the list, whatever came back."""
        self._left.pop(candidate.key, None)


class Shuffle(Sweep):
    """Every candidate once, in an order drawn from the seed: the baseline every other searcher must beat."""

    def __init__(self, candidates: Sequence[Candidate], seed: int) -> None:
        shuffled = list(candidates)
        random.Random(seed).shuffle(shuffled)
        super().__init__(shuffled, seed)
