"""The search as one state: which state may follow which, under which condition, and what trial it runs.

A session asks those rows of `TRANSITIONS` that begin in its state, from top to bottom, and takes the first whose answer
is a trial or yes. A condition depends on nothing but `Answers`: the journal, the session's budget and the searcher. The
journal names with each trial the state that asked for it, from which the next session goes on (`resumed`).

Trials of the search may run side by side, and so may final runs, each on nodes of its own. A row that is not `beside`
those that run waits until none does, and the state stays as it is until then: its answer may be another one by that
time.
"""

import dataclasses
from collections.abc import Callable

from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from search_spaces.candidate import Candidate
from trainers.records.search_state import SearchState as State
from trainers.spec.batch import BatchPoint


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExplorationTrial:
    """A trial of the search: a candidate with the rungs that it is to climb."""

    candidate: Candidate
    rungs: tuple[BatchPoint, ...]
    runs_one: bool = False
    """Whether its first rung runs even where time is over."""
    leave_s: float = 0.0
    """Seconds of a budget that must be left when a rung begins."""
    suggestion: Candidate | None = None
    """The searcher's suggestion, with all of its rungs; None where the searcher has ended."""
    is_alone: bool = False
    """Whether nothing may run beside it."""


Trial = ExplorationTrial | ConfirmationTrial


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """The knowledge of a session at one moment. A trial is None where there is none, or no time for it."""

    is_faulted: bool
    """Whether the cluster is at fault."""
    may_confirm: Callable[[], bool]
    """Whether nothing must be explored before confirmation, and the time that is left holds the winners' runs at length
    with their gates.
    """
    exploration: Callable[[], ExplorationTrial | None]
    confirmation: Callable[[], ConfirmationTrial | None]
    profile: Callable[[], ConfirmationTrial | None]
    is_running: bool = False
    """Whether a trial is running, beside which the next one would run."""
    is_final_running: bool = False
    """Whether it comes after the search."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """One row of the table."""

    sources: frozenset[State]
    condition: str
    target: State
    trial: str
    """The trial that the target state runs, in words."""
    answer: Callable[[Answers], Trial | bool | None]
    """Returns the trial to run, or for a terminal target whether the row is taken."""
    beside: bool = False
    """Whether its trial may run beside others: one of the search beside others of the search, a final one beside final
    ones.
    """


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The state that follows, with the trial that it runs; None in a terminal state."""

    state: State
    trial: Trial | None = None
    waits: bool = False
    """Whether what follows waits for the trials that run."""


def _confirms(state: State) -> Callable[[Answers], Trial | None]:
    """Returns the answer of the next confirmation trial, where it is one of `state`."""
    return lambda answers: trial if (trial := answers.confirmation()) and trial.state is state else None


ACTIVE = frozenset(state for state in State if not state.is_terminal)

TRANSITIONS = (
    Transition(
        sources=ACTIVE,
        condition="the cluster is at fault",
        target=State.FAULTED,
        trial="none",
        answer=lambda answers: answers.is_faulted,
    ),
    Transition(
        sources=frozenset({State.RESUMING}),
        condition="confirmation may begin, and the time holds its next trial",
        target=State.RESUMING,
        trial="that trial",
        answer=lambda answers: answers.confirmation() if answers.may_confirm() else None,
        beside=True,
    ),
    Transition(
        sources=frozenset({State.RESUMING}),
        condition="confirmation may not begin, and the time holds the searcher's next trial",
        target=State.RESUMING,
        trial="the candidate that the searcher suggests",
        answer=lambda answers: None if answers.may_confirm() else answers.exploration(),
        beside=True,
    ),
    Transition(
        sources=frozenset({State.RESUMING, State.EXPLORING}),
        condition="the time holds the searcher's next trial, beside what is reserved for confirmation",
        target=State.EXPLORING,
        trial="the candidate that the searcher suggests",
        answer=lambda answers: answers.exploration(),
        beside=True,
    ),
    Transition(
        sources=ACTIVE,
        condition="a fast point lacks a run, and the time holds it and what follows",
        target=State.CONFIRMING,
        trial="that point again, in processes of its own",
        answer=_confirms(State.CONFIRMING),
        beside=True,
    ),
    Transition(
        sources=ACTIVE,
        condition="a disturbed machine leaves open which point is the fastest, and the time holds a run",
        target=State.BREAKING_TIES,
        trial="these points in turn",
        answer=_confirms(State.BREAKING_TIES),
        beside=True,
    ),
    Transition(
        sources=ACTIVE,
        condition="the winner has not run at length, and the time holds that",
        target=State.MEASURING_WINNER,
        trial="the winner at length, with its numerics gate where the time holds the reference's too",
        answer=_confirms(State.MEASURING_WINNER),
        beside=True,
    ),
    Transition(
        sources=ACTIVE,
        condition="the curves of the winner or of its reference are missing, and the time holds them",
        target=State.GATING,
        trial="the numerics gate of that layout alone",
        answer=_confirms(State.GATING),
        beside=True,
    ),
    Transition(
        sources=ACTIVE,
        condition="the winner's profile is asked for, and the time holds it",
        target=State.PROFILING,
        trial="the winner under the profiler",
        answer=lambda answers: answers.profile(),
    ),
    Transition(
        sources=ACTIVE,
        condition="none of these",
        target=State.DONE,
        trial="none",
        answer=lambda answers: True,
    ),
)


def decide(state: State, answers: Answers) -> Decision:
    """Returns what follows in `state`. A terminal state stays."""
    for row in TRANSITIONS:
        if state in row.sources and (answer := row.answer(answers)):
            is_final = isinstance(answer, ConfirmationTrial)
            is_alone = isinstance(answer, ExplorationTrial) and answer.is_alone
            if answers.is_running and (is_alone or not row.beside or is_final != answers.is_final_running):
                return Decision(state=state, waits=True)
            return Decision(state=row.target, trial=None if isinstance(answer, bool) else answer)
    return Decision(state=state)


def resumed(last: State) -> State:
    """Returns the state in which a session begins whose study was left in the state `last`."""
    return State.EXPLORING if last is State.EXPLORING else State.RESUMING
