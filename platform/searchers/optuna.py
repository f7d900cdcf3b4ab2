"""Optuna's TPE through Ray Tune's adapter, over the axes of the candidates."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic

from platform.searchers.problem import TRIED, C, Observation, Problem
from trainers.records.measurement import TIMED

_MOST_REPEATS = 50
"""Number of draws of candidates that already ran after which the first remaining candidate is suggested."""


class OptunaSearcher(Generic[C]):
    """TPE over a tree of axes. Each axis offers only values that lead to a candidate, so every draw is valid."""

    stopped_reason = TRIED

    def __init__(self, problem: Problem[C]) -> None:
        # Imported here, so that `--list` and the other searchers do not wait for Optuna.
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._rows = [
            (candidate, {axis: str(value) for axis, value in candidate.axes.items()})
            for candidate in problem.candidates
        ]
        self._remaining = {candidate.key: candidate for candidate in problem.candidates}
        self._scores: dict[str, float] = {}
        self._num_suggested = 0
        self._suggestion: C | None = None
        self._drawn: dict[str, str] = {}
        """By key: TPE's id of the candidate's last draw, which has no score yet."""
        self._search = OptunaSearch(
            space=self._draw, metric="tokens_per_s", mode="max", sampler=optuna.samplers.TPESampler(seed=problem.seed)
        )

    def suggest(self, running: Sequence[C] = ()) -> C | None:
        """Returns TPE's next draw that has neither run nor is `running`.

        For a draw that already ran, TPE gets its score again; for a running one, the mean of all scores (the constant
        liar of Ginsbourger et al. 2010). Then the next draw follows.
        """
        running_keys = {candidate.key for candidate in running}
        if self._suggestion is not None and self._suggestion.key not in running_keys:
            return self._suggestion
        self._suggestion = self._next(running_keys)
        return self._suggestion

    def _next(self, running_keys: Collection[str]) -> C | None:
        free = next((candidate for key, candidate in self._remaining.items() if key not in running_keys), None)
        if free is None:
            return None
        mean = statistics.fmean(self._scores.values()) if self._scores else 0.0
        for _ in range(_MOST_REPEATS):
            trial_id = str(self._num_suggested)
            self._num_suggested += 1
            drawn = self._search.suggest(trial_id)
            candidate = self._match(drawn if isinstance(drawn, Mapping) else {})
            if candidate.key in self._remaining and candidate.key not in running_keys:
                self._drawn[candidate.key] = trial_id
                return candidate
            score = mean if candidate.key in running_keys else self._scores.get(candidate.key, 0.0)
            self._search.on_trial_complete(trial_id, {"tokens_per_s": score})
        return free

    def update(self, candidate: C, measurements: Sequence[Observation]) -> None:
        """Scores the candidate by its best measurement whose time counts; 0 without one."""
        speeds = [m.tokens_per_s for m in measurements if m.outcome in TIMED and m.tokens_per_s]
        self._scores[candidate.key] = max(speeds, default=0.0)
        planned = self._remaining.get(candidate.key)
        if planned is None or not set(planned.micro_batches) <= set(candidate.micro_batches):
            return
        del self._remaining[candidate.key]
        self._suggestion = None
        if trial_id := self._drawn.pop(candidate.key, ""):
            self._search.on_trial_complete(trial_id, {"tokens_per_s": self._scores[candidate.key]})

    def _draw(self, trial: Any) -> None:
        """Chooses axis by axis among the remaining candidates, as Optuna's define-by-run function."""
        rows = self._rows
        for axis in rows[0][1]:
            values = sorted({row[1][axis] for row in rows})
            if len(values) > 1:
                prefix = "|".join(values)
                chosen = trial.suggest_categorical(f"{axis} of {prefix}", values)
                rows = [row for row in rows if row[1][axis] == chosen]

    def _match(self, drawn: Mapping[str, Any]) -> C:
        rows = self._rows
        for axis in rows[0][1]:
            values = sorted({row[1][axis] for row in rows})
            if len(values) > 1:
                chosen = drawn.get(f"{axis} of {'|'.join(values)}", values[0])
                rows = [row for row in rows if row[1][axis] == chosen]
        return rows[0][0]
