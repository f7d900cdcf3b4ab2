"""The search as one state: which state may follow which, under which condition, and the trial it runs.

A session checks the rows of `TRANSITIONS` that begin in its state from top to bottom, and takes the first whose answer
is a trial or true. A condition depends only on `Answers`: the journal, the session's budget and the searcher. The
journal records with each trial the state that asked for it, from which the next session continues (`resumed`).

Trials of the search may run side by side, and so may confirmation runs, each on its own nodes. A row without `beside`
waits until no trial runs; the state is kept until then, because the answer may have changed.
"""

import dataclasses
from collections.abc import Callable

from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from search_spaces.candidate import Candidate
from trainers.records.search_state import SearchState as State
from trainers.spec.batch import BatchPoint


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExplorationTrial:
    """A trial of the search: a candidate with the rungs to climb."""

    candidate: Candidate
    rungs: tuple[BatchPoint, ...]
    runs_one: bool = False
    """Whether its first rung runs even if the time is over."""
    leave_s: float = 0.0
    """Seconds of a budget that must remain when a rung begins."""
    suggestion: Candidate | None = None
    """The searcher's suggestion with all of its rungs; None if the searcher has ended."""
    is_alone: bool = False
    """Whether no other trial may run beside it."""

    @property
    def takes_whole_nodes(self) -> bool:
        """Whether no other trial may share its nodes: an optimizer that steps on the host has its states in the host's
        memory, and needs all of its cores.
        """
        return self.is_alone or self.candidate.layout.steps_on_host


Trial = ExplorationTrial | ConfirmationTrial


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """The knowledge of a session at one moment. A trial is None if there is none, or no time for it."""

    is_faulted: bool
    """Whether the cluster is at fault."""
    may_confirm: Callable[[], bool]
    """Whether confirmation may begin: nothing must be explored first, and the time holds runs at length with gates."""
    exploration: Callable[[], ExplorationTrial | None]
    confirmation: Callable[[], ConfirmationTrial | None]
    profile: Callable[[], ConfirmationTrial | None]
    is_running: bool = False
    """Whether a trial is running, beside which the next one would run."""
    is_final_running: bool = False
    """Whether the running trial is a confirmation trial."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    sources: frozenset[State]
    condition: str
    target: State
    trial: str
    """Text on the trial that the target state runs."""
    answer: Callable[[Answers], Trial | bool | None]
    """Returns the trial to run, or for a terminal target whether the row applies."""
    beside: bool = False
    """Whether its trial may run beside others of the same kind (search or confirmation)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The next state with its trial; None in a terminal state."""

    state: State
    trial: Trial | None = None
    waits: bool = False
    """Whether the decision waits for running trials."""


def _confirms(state: State) -> Callable[[Answers], Trial | None]:
    """Returns a function of the next confirmation trial, None if its state is not `state`."""
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
    """Returns the decision in `state`. A terminal state is kept."""
    for row in TRANSITIONS:
        if state in row.sources and (answer := row.answer(answers)):
            is_final = isinstance(answer, ConfirmationTrial)
            is_alone = isinstance(answer, ExplorationTrial) and answer.is_alone
            if answers.is_running and (is_alone or not row.beside or is_final != answers.is_final_running):
                return Decision(state=state, waits=True)
            return Decision(state=row.target, trial=None if isinstance(answer, bool) else answer)
    return Decision(state=state)


def resumed(last: State) -> State:
    """Returns the state in which a session begins if its study was left in the state `last`."""
    return State.EXPLORING if last is State.EXPLORING else State.RESUMING
