"""The confirmation trials that a session has already run, read from its journal."""

from collections.abc import Iterable

from platform.study.history import History
from platform.study.keys import key_of_trial
from trainers.records.journal import TrialStart


def attempted_trials(finals: Iterable[TrialStart], history: History) -> tuple[TrialStart, ...]:
    """Returns the confirmation trials that the session which ran them must not repeat, whatever their result."""
    return tuple(trial for trial in finals if not _runs_again(trial, history))


def _runs_again(trial: TrialStart, history: History) -> bool:
    """Returns whether the trial's processes died or never started, or its gate used up its rung's time."""
    end = history.trial_end(trial.trial_id)
    if end is None or end.state == "done":
        return False
    if end.fault:
        return True
    measured = history.measured(key_of_trial(trial), trial.repeat)
    was_gated = any(curves.trial_id == trial.trial_id for curves in history.gates)
    return was_gated and all(measurement.trial_id != trial.trial_id for measurement in measured)
