"""Compares a study's winner and runner-up then and now: speeds with intervals, the gate, and changes of conditions."""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TypedDict

from platform.common.errors import NOT_RESOLVED
from platform.common.text import figure
from platform.report.environment_diff import EnvironmentChange, surroundings
from platform.search.setup.rechecked import RecheckSubject
from platform.study.result.gate import GateVerdict
from platform.study.result.ranking import PointRuns, ratio_interval
from platform.study.result.result import StudyResult
from trainers.measuring.intervals import t_quantile
from trainers.records.measurement import Measurement

SLOWER = 1
"""Exit code if the winner is slower, no longer runs, or fails its gate."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PointAgain:
    """One point of the old study with today's runs."""

    then: PointRuns
    now: PointRuns | None
    """None if the point was not measured today."""

    @property
    def label(self) -> str:
        """The layout with its micro-batch."""
        run = self.then.main_run
        return f"{run.layout.label}, micro-batch {run.batch.micro_batch}"

    @property
    def ratio(self) -> float | None:
        """Today's tokens/s over the old study's, geometric means of runs; None if either has no speed."""
        return math.exp(self._log_ratio) if self._speeds else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of `ratio` by Student's t over logarithms of unpaired runs with one variance; None for fewer
        than three runs in total.
        """
        then, now = self._speeds or ((), ())
        freedom = len(then) + len(now) - 2
        if freedom < 1:
            return None
        logs = [[math.log(speed) for speed in speeds] for speeds in (then, now)]
        squares = sum((log - statistics.fmean(each)) ** 2 for each in logs for log in each)
        half = t_quantile(freedom) * math.sqrt(squares / freedom * (1 / len(then) + 1 / len(now)))
        return math.exp(self._log_ratio - half), math.exp(self._log_ratio + half)

    @property
    def is_slower(self) -> bool:
        """Whether the whole interval lies below 1."""
        return self.interval is not None and self.interval[1] < 1

    @property
    def failure(self) -> str:
        """Reason why a run of today is not `ok`; "" if all are, or there is none."""
        runs = self.now.decisive if self.now and not self.now.speeds else ()
        return next((f"{run.outcome}{run.reason and f' ({run.reason})'}" for run in runs if run.reason), "")

    @property
    def sentence(self) -> str:
        if self.failure:
            return f"{self.label}: {self.failure}."
        if self.ratio is None or self.now is None:
            return f"{self.label}: not measured again."
        speeds = f"{figure(self.now.median_tokens_per_s)} tokens/s, {figure(self.then.median_tokens_per_s)} then"
        if self.interval is None:
            return f"{self.label}: {speeds} ({self.ratio - 1:+.1%}, of one run each)."
        low, high = self.interval
        words = "slower" if high < 1 else "faster" if low > 1 else "as fast as then within the interval"
        return f"{self.label}: {speeds} ({self.ratio - 1:+.1%}, {ratio_interval(low, high)}): {words}."

    @property
    def _speeds(self) -> tuple[Sequence[float], Sequence[float]] | None:
        then, now = self.then.speeds, self.now.speeds if self.now else ()
        return (then, now) if then and now else None

    @property
    def _log_ratio(self) -> float:
        then, now = self._speeds or ((1.0,), (1.0,))
        return statistics.fmean(map(math.log, now)) - statistics.fmean(map(math.log, then))


class PointAgainForm(TypedDict):
    """A point in the old study and today."""

    label: str
    """Layout and micro-batch on one line."""
    then_tokens_per_s: float | None
    """Tokens/s in the old study, the median over runs."""
    now_tokens_per_s: float | None
    """Tokens/s today; null if the point did not run or failed."""
    ratio: float | None
    """Today's tokens/s over the old study's."""
    interval: tuple[float, float] | None
    """95 % interval of the ratio; null for fewer than three runs in total."""
    slower: bool
    """Whether the whole interval lies below 1."""
    failure: str
    """The reason why the point no longer runs; empty if it runs."""


class RecheckForm(TypedDict):
    """A recheck."""

    study: str
    """Name of the old study."""
    recheck: str
    """Name of the study with the new runs."""
    winner: PointAgainForm
    """The winner."""
    runner_up: PointAgainForm | None
    """The best point of another layout; null if none was measured."""
    gate_passed: bool | None
    """Whether the winner passed its numerics gate today; null if the gate did not run."""
    changes: list[EnvironmentChange]
    """Changes of devices, versions, driver, commit and environment."""
    exit_code: int
    """0 as fast as then, 1 slower or failed, 4 not measured often enough."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recheck:
    """The answer of a recheck."""

    old: StudyResult
    new: StudyResult
    winner: PointAgain
    runner_up: PointAgain | None
    gate: GateVerdict | None
    """Today's verdict on the winner's gate; None if the gate did not run."""
    changes: tuple[EnvironmentChange, ...]

    @property
    def exit_code(self) -> int:
        if self.winner.failure or self.winner.is_slower or (self.gate is not None and not self.gate.passed):
            return SLOWER
        return NOT_RESOLVED if self.winner.ratio is None or self.winner.interval is None else 0

    @property
    def sentences(self) -> Iterator[str]:
        yield f"The winner of {self.old.header.name}: {self.winner.sentence}"
        if self.runner_up is not None:
            yield f"Its runner-up: {self.runner_up.sentence}"
            first, second = self.winner.now, self.runner_up.now
            if first and second and first.speeds and second.speeds:
                yield f"Today: {second.beside(first).sentence}" if _is_faster(second, first) else ""
        why = "the time did not suffice" if self.runner_up else "there is no other layout to hold it to"
        yield self.gate.sentence if self.gate else f"The winner's numerics gate did not run: {why}."
        yield from (f"Changed: {', '.join(change.names)}: {change.values}." for change in self.changes)
        if not self.changes:
            yield "Nothing that is recorded has changed: devices, versions, environment and commit are those of then."

    def to_json(self) -> RecheckForm:
        return {
            "study": self.old.header.name,
            "recheck": self.new.header.name,
            "winner": _form(self.winner),
            "runner_up": self.runner_up and _form(self.runner_up),
            "gate_passed": self.gate and self.gate.passed,
            "changes": list(self.changes),
            "exit_code": self.exit_code,
        }


def _is_faster(first: PointRuns, second: PointRuns) -> bool:
    return first.beside(second).ratio > 1


def _form(point: PointAgain) -> PointAgainForm:
    return {
        "label": point.label,
        "then_tokens_per_s": point.then.median_tokens_per_s,
        "now_tokens_per_s": point.now and point.now.median_tokens_per_s,
        "ratio": point.ratio,
        "interval": point.interval,
        "slower": point.is_slower,
        "failure": point.failure,
    }


def recheck_of(subject: RecheckSubject, new: StudyResult) -> Recheck:
    """Returns the comparison of the old study's points with today's study."""
    winner, *others = (_again(point, subject.result, new) for point in subject.points)
    now = winner.now.main_run if winner.now else None
    changes = () if now is None else surroundings(winner.then.main_run, now, (subject.result.header, new.header))
    return Recheck(
        old=subject.result,
        new=new,
        winner=winner,
        runner_up=others[0] if others else None,
        gate=_gate(subject.winner, new),
        changes=tuple(changes),
    )


def _again(point: Measurement, old: StudyResult, new: StudyResult) -> PointAgain:
    of_old, of_new = (result.by_id.get(point.recipe.id) for result in (old, new))
    then = of_old.point_of(point) if of_old else None
    assert then is not None, "the point is one of the old study"
    now = next(
        (
            runs
            for runs in (of_new.points if of_new else ())
            if (runs.main_run.layout, runs.main_run.batch.micro_batch) == (point.layout, point.batch.micro_batch)
        ),
        None,
    )
    return PointAgain(then=then, now=now)


def _gate(winner: Measurement, new: StudyResult) -> GateVerdict | None:
    """Returns today's verdict on the old winner's layout; None if the gate did not run."""
    of_recipe = new.by_id.get(winner.recipe.id)
    verdicts = [verdict for curves, verdict in (of_recipe.gates if of_recipe else ()) if curves.layout == winner.layout]
    return next(filter(None, reversed(verdicts)), None)
