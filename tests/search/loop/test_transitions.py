"""The table of transitions, and the states through which real sessions go, trial by trial."""

import dataclasses
import itertools
import random
from pathlib import Path

import pytest

from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.loop.transitions import (
    ACTIVE,
    TRANSITIONS,
    Answers,
    Decision,
    ExplorationTrial,
    decide,
    resumed,
)
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.history import History
from platform.study.journal import Tail
from platform.study.study import Study
from tests.search.loop.backend import LAYOUTS, OTHER, RECIPE, Backend, Died, Make, TimeOut, candidates, fast, result
from trainers.records.job import GateSize, Job
from trainers.records.journal import End, Resume
from trainers.records.measurement import Measurement
from trainers.records.search_state import SearchState as State
from trainers.spec.batch import BatchPoint

RULES = ConfirmationRules(repeats=1, finalists=2, gate=GateSize(steps=2, sequences=4), profile=True)
FINALS = [State.CONFIRMING, State.CONFIRMING, State.MEASURING_WINNER, State.GATING, State.PROFILING]
OF_CONFIRMATION = (State.CONFIRMING, State.BREAKING_TIES, State.MEASURING_WINNER, State.GATING)
OLD_JOURNAL = Path(__file__).parents[2] / "study" / "data" / "journal.jsonl"


@dataclasses.dataclass(frozen=True)
class Known:
    """The knowledge of a made-up session."""

    is_faulted: bool
    may_confirm: bool
    exploration: ExplorationTrial | None
    confirmation: ConfirmationTrial | None
    profile: ConfirmationTrial | None

    def decide(self, state: State) -> Decision:
        """Returns what follows in `state`."""
        return decide(
            state,
            Answers(
                is_faulted=self.is_faulted,
                may_confirm=lambda: self.may_confirm,
                exploration=lambda: self.exploration,
                confirmation=lambda: self.confirmation,
                profile=lambda: self.profile,
            ),
        )


def everything_known() -> list[Known]:
    """Returns each combination of answers that a session may have."""
    candidate = candidates()[0]
    explores = ExplorationTrial(candidate=candidate, rungs=candidate.batch_points())
    confirms, profiles = (
        [ConfirmationTrial(state=state, recipe=RECIPE, layout=LAYOUTS[0]) for state in states_of_trials]
        for states_of_trials in (OF_CONFIRMATION, [State.PROFILING])
    )
    answers = itertools.product((True, False), (True, False), (None, explores), (None, *confirms), (None, *profiles))
    return [Known(*combination) for combination in answers]


class TestTheTable:
    @pytest.mark.parametrize("state", sorted(ACTIVE))
    def test_each_state_is_left_by_a_row_of_it_whatever_is_known(self, state: State) -> None:
        rows = {row.target for row in TRANSITIONS if state in row.sources}
        for answers in everything_known():
            decision = answers.decide(state)
            assert decision.state in rows
            assert (decision.trial is None) == decision.state.is_terminal
            if answers.is_faulted:
                assert decision.state is State.FAULTED
            elif not (answers.exploration or answers.confirmation or answers.profile):
                assert decision.state is State.DONE, "nothing is left"

    def test_every_state_is_reached_and_none_follows_the_end(self) -> None:
        assert {row.target for row in TRANSITIONS} == set(State)
        assert not any(state.is_terminal for row in TRANSITIONS for state in row.sources)
        for answers in everything_known():
            assert answers.decide(State.DONE).state is State.DONE

    def test_a_confirmation_trial_runs_in_its_own_state_and_exploring_does_not_come_back(self) -> None:
        for state, answers in itertools.product((*OF_CONFIRMATION, State.PROFILING), everything_known()):
            decision = answers.decide(state)
            assert decision.state not in (State.EXPLORING, State.RESUMING)
            assert not isinstance(decision.trial, ExplorationTrial)
            if decision.trial is not None:
                assert decision.trial.state is decision.state

    def test_an_unfinished_confirmation_comes_before_exploring_as_soon_as_it_may_begin(self) -> None:
        for answers in everything_known():
            decision = answers.decide(State.RESUMING)
            if not answers.is_faulted and answers.exploration and answers.may_confirm:
                assert decision.state is (State.RESUMING if answers.confirmation else State.EXPLORING)
                assert decision.trial is (answers.confirmation or answers.exploration)
            elif not answers.is_faulted and answers.exploration:
                assert (decision.state, decision.trial) == (State.RESUMING, answers.exploration)


def earlier_layouts_are_faster(job: Job, batch: BatchPoint) -> Measurement:
    """Returns a measurement of which earlier layouts are faster, so that the winner's numerics gate has a reference."""
    return result(job, batch, 1000.0 - 100.0 * LAYOUTS.index(job.layout))


def disturbed(job: Job, batch: BatchPoint) -> Measurement:
    """Returns a measurement of which the first runs are slowed down."""
    figure = earlier_layouts_are_faster(job, batch)
    return dataclasses.replace(figure, tokens_per_s=(figure.tokens_per_s or 0.0) * (0.5 if job.repeat == 1 else 1.0))


def states(make: Make, backend: Backend, **options: object) -> list[State]:
    """Returns the state of each trial of a session, then that in which it ends."""
    loop = make(**options)
    recorded: list[State] = []
    while backend.step(loop) is not None:
        recorded.append(loop.state)
    return [*recorded, loop.state]


class TestSessions:
    def test_a_search_is_followed_by_each_state_of_confirmation_in_turn(self, make: Make, backend: Backend) -> None:
        backend.play = earlier_layouts_are_faster
        assert states(make, backend, rules=RULES) == [*[State.EXPLORING] * 3, *FINALS, State.DONE]

    def test_without_rules_the_session_ends_with_the_search(self, make: Make, backend: Backend) -> None:
        assert states(make, backend) == [*[State.EXPLORING] * 3, State.DONE]

    def test_one_that_resumes_a_confirmation_begins_with_it_and_explores_after_it(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        """Checks a gate whose reference is a layout that the first session did not try."""
        backend.play = earlier_layouts_are_faster
        loop = make(rules=RULES, max_trials=2)
        while backend.step(loop) is not None and loop.state is not State.CONFIRMING:
            pass
        study.record(End(exit_code=0, wall_s=30, gpu_s=60, left_out=loop.left_out))
        study.record(Resume())
        begun = len(backend.jobs)
        order = states(make, backend, rules=RULES)
        assert order == [*[State.RESUMING] * 3, State.EXPLORING, State.PROFILING, State.DONE]
        kinds = [(job.repeat, job.is_winner_run) for job in backend.jobs[begun:]]
        assert kinds[:3] == [(1, False), (2, True), (0, False)], "a finalist, the winner at length, the reference"

    def test_two_layouts_of_a_recipe_that_was_not_tried_come_before_its_confirmation(
        self, make: Make, backend: Backend, study: Study
    ) -> None:
        backend.play = earlier_layouts_are_faster
        backend.run(make(rules=RULES))
        study.record(Resume())
        begun = len(backend.jobs)
        order = states(make, backend, within=candidates(RECIPE, OTHER), rules=RULES)
        of_search = [bool(job.rungs) and not job.repeat for job in backend.jobs[begun:]]
        assert of_search[:3] == [True, True, False] and order[:3] == [State.RESUMING] * 3
        assert sum(of_search) == order.count(State.EXPLORING) + 2 == 3, "the others come after the confirmation"

    def test_ties_are_broken_where_the_machine_was_disturbed(self, make: Make, backend: Backend) -> None:
        backend.play = disturbed
        order = states(make, backend, rules=dataclasses.replace(RULES, gate=None, profile=False))
        assert order.index(State.CONFIRMING) < order.index(State.BREAKING_TIES), "the runs show the disturbance"

    def test_a_faulty_cluster_ends_the_session_in_a_state_of_its_own(self, make: Make, backend: Backend) -> None:
        loop = make(rules=RULES)
        for _ in range(3):
            job = loop.next_job()
            assert job is not None and not loop.state.is_terminal
            loop.on_trial_end(job.trial_id, state="failed", reason="no room for two workers", started=False)
        assert loop.next_job() is None and loop.state is State.FAULTED

    def test_a_decision_begins_no_trial_and_writes_nothing(self, make: Make, study: Study) -> None:
        loop, before = make(), study.journal.read_bytes()
        decision = loop.decide()
        assert decision.state is State.EXPLORING and decision.trial is not None and not loop.running
        assert study.journal.read_bytes() == before


def lines_of(study: Study) -> int:
    return len(study.journal.read_text().splitlines())


class TestReplaying:
    """The journal alone says in which state a search is."""

    @pytest.mark.parametrize("seed", range(8))
    def test_every_line_gives_the_state_that_was_lived_through(
        self, seed: int, make: Make, backend: Backend, study: Study
    ) -> None:
        """Checks sessions of random budgets, in which trials die, fail, tie and are cut, and which are killed."""
        chance = random.Random(seed)
        edges = {(source, row.target) for row in TRANSITIONS for source in row.sources}
        rules = dataclasses.replace(RULES, repeats=chance.choice([0, 1, 2]), profile=chance.random() < 0.5)

        def play(job: Job, batch: BatchPoint) -> Measurement | Died | TimeOut:
            ends = chance.random()
            figure = fast(job, batch)
            noisy = (figure.tokens_per_s or 0.0) * chance.uniform(0.7, 1.0)
            measured = dataclasses.replace(figure, tokens_per_s=noisy)
            return Died() if ends < 0.05 else TimeOut() if ends < 0.1 else measured

        backend.play = play
        backend.losses = lambda job: None if chance.random() < 0.2 else (2.0, 1.0)
        lived = [State.EXPLORING] * lines_of(study)
        for _ in range(4):
            loop, last_trial = make(rules=rules, time_s=chance.choice([30.0, 90.0, 1000.0])), chance.randint(1, 12)
            before = loop.state
            assert before is resumed(lived[-1])
            for number in range(100):
                job = loop.next_job()
                lived += [lived[-1]] * (lines_of(study) - len(lived) - (job is not None))
                assert (before, loop.state) in edges
                before = loop.state
                if job is None:
                    break
                lived.append(loop.state)
                if number == last_trial:
                    break
                state, reason = backend.begin(job)
                loop.on_trial_end(job.trial_id, state=state, reason=reason)
            if loop.state.is_terminal:
                left_out, by_itself = loop.left_out, not loop.fault
                study.record(End(exit_code=0 if by_itself else 3, wall_s=9, gpu_s=18, left_out=left_out))
                lived += [lived[-1]] * (lines_of(study) - 1 - len(lived))
                lived.append(State.RESUMING if left_out else State.EXPLORING if by_itself else lived[-1])
            study.record(Resume())
            lived += [lived[-1]] * (lines_of(study) - len(lived))
        history, replayed = History(), list[State]()
        for line in Tail(study.journal).read():
            history.extend([line])
            replayed.append(history.state)
        assert replayed == lived

    @pytest.mark.parametrize("play", [earlier_layouts_are_faster, disturbed])
    def test_a_session_that_is_killed_in_any_trial_goes_on_with_that_trial(
        self, play: object, make: Make, backend: Backend, study: Study
    ) -> None:
        """Kills a first session in each of its trials, then the session that resumes it."""
        backend.play = play  # type: ignore[reportAttributeAccessIssue]
        backend.run(make(rules=RULES))
        lines = study.journal.read_text().splitlines(keepends=True)
        jobs, reached = list(backend.jobs), set[State]()
        starts = [number for number, line in enumerate(lines) if '"trial_start"' in line]
        for job, start in zip(jobs, starts, strict=True):
            study.journal.write_text("".join(lines[: start + 1]))
            for _ in range(2):
                study.record(Resume())
                last = History(Tail(study.journal).read()).state
                loop = make(rules=RULES)
                assert loop.state is resumed(last)
                again = loop.next_job()
                assert again is not None and task_of(again) == task_of(job), last
                reached.add(last)
        assert reached >= {State.EXPLORING, State.RESUMING, State.CONFIRMING, State.MEASURING_WINNER, State.GATING}
        assert (State.BREAKING_TIES in reached) == (play is disturbed)

    def test_journals_without_states_tell_the_search_from_what_follows_it(self) -> None:
        history = History()
        for line in Tail(OLD_JOURNAL).read():
            history.extend([line])
            is_final = bool(history.trials) and history.trials[-1].is_final
            assert history.end or history.state is (State.CONFIRMING if is_final else State.EXPLORING)
        assert any(start.is_final for start in history.trials)


def task_of(job: Job) -> tuple[object, ...]:
    """Returns what a trial was asked to do."""
    return job.recipe, job.layout, job.rungs, job.repeat, job.gate, job.profile, job.is_winner_run
