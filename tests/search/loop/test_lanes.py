"""Trials side by side: which may run beside which, where, and what becomes of them, without Ray."""

import dataclasses
import functools
import random
from collections import Counter
from collections.abc import Callable

import pytest

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.search.loop.lanes import Lanes
from platform.search.loop.transitions import TRANSITIONS, resumed
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.history import History
from platform.study.journal import Tail
from platform.study.result.ranking import winner
from platform.study.study import Study
from tests.samples import layout
from tests.search.loop.backend import (
    LAYOUTS,
    OTHER,
    RECIPE,
    Backend,
    Clock,
    Died,
    Make,
    TimeOut,
    candidates,
    fast,
    history_of,
    result,
)
from tests.search.loop.side_by_side import Playing, of_random_length
from trainers.records.job import GateSize, Job
from trainers.records.journal import End, Peak, Resume, TrialEnd
from trainers.records.measurement import Measurement, Outcome
from trainers.records.search_state import SearchState as State
from trainers.spec.batch import BatchPoint

MANY = candidates(
    RECIPE,
    OTHER,
    layouts=[*LAYOUTS, *(layout(dp_shard=2, bucket_mib=size) for size in (5, 50, 100))],
)
RULES = ConfirmationRules(repeats=1, finalists=2, gate=GateSize(steps=2, sequences=4))


def nodes(count: int, first: int = 1) -> dict[str, str]:
    """Returns Ray's ids and addresses of nodes."""
    return {f"id{number}": f"10.0.0.{number}" for number in range(first, first + count)}


@pytest.fixture
def playing(backend: Backend, clock: Clock) -> Playing:
    return Playing(backend, clock, of_random_length(random.Random(7)))


class TestPlaces:
    def test_one_at_a_time_anywhere_by_default_and_where_the_nodes_hold_one_trial(self) -> None:
        for lanes in (Lanes(), Lanes(lambda: nodes(3), nodes_per_trial=2)):
            assert lanes.place(()) == {} and lanes.place((job_on(),)) is None

    def test_each_trial_has_whole_nodes_of_its_own(self) -> None:
        lanes = Lanes(lambda: nodes(5), nodes_per_trial=2)
        first = lanes.place(())
        assert first is not None and first == nodes(2) and lanes.count() == 2
        second = lanes.place((job_on(*first),))
        assert second is not None and second == nodes(2, first=3)
        assert lanes.place((job_on(*first), job_on(*second))) is None, "one node is left, and a trial takes two"

    def test_trials_that_may_share_a_node_take_free_nodes_first(self) -> None:
        lanes, running = Lanes(lambda: nodes(2), trials_per_node=2), list[Job]()
        for expected in ("id1", "id2", "id1", "id2"):
            place = lanes.place(running)
            assert place is not None and list(place) == [expected]
            running.append(job_on(expected, share=0.5))
        assert lanes.place(running) is None

    def test_nodes_that_join_are_used_and_those_that_leave_are_not(self) -> None:
        present = nodes(2)
        lanes = Lanes(lambda: present)
        assert lanes.place((job_on("id1"), job_on("id2"))) is None
        present |= nodes(1, first=3)
        assert lanes.place((job_on("id1"), job_on("id2"))) == {"id3": "10.0.0.3"}
        del present["id1"]
        assert lanes.place(()) == {"id2": "10.0.0.2"}

    def test_none_runs_beside_one_that_began_anywhere_before_a_second_node_joined(self) -> None:
        present = nodes(1)
        lanes = Lanes(lambda: present)
        assert lanes.place(()) == {}
        present |= nodes(1, first=2)
        assert lanes.place((job_on(),)) is None
        assert lanes.place(()) == nodes(1), "once it has ended"

    def test_one_trial_at_a_time_has_nodes_of_its_own_where_a_node_is_refused(self) -> None:
        present = nodes(2)
        lanes = Lanes(lambda: present, nodes_per_trial=2, has_refused=lambda: True)
        assert lanes.place(()) == nodes(2) and lanes.place((job_on("id1", "id2"),)) is None
        del present["id2"]
        assert lanes.place(()) == {}, "no trial has room on these"

    def test_nodes_to_avoid_are_used_only_where_no_others_hold_a_trial(self) -> None:
        lanes = Lanes(lambda: nodes(2))
        assert lanes.place((), avoid={"10.0.0.1"}) == {"id2": "10.0.0.2"}
        assert lanes.place((), avoid={"10.0.0.1", "10.0.0.2"}) == {"id1": "10.0.0.1"}


def job_on(*node_ids: str, share: float = 1.0) -> Job:
    """Returns a trial on these nodes, of each of which it takes a share."""
    from tests.search.loop.test_tune import JOB

    return dataclasses.replace(JOB, nodes=node_ids, node_share=share)


class TestSideBySide:
    def test_the_search_fills_the_nodes_and_each_round_of_what_follows_has_nodes_of_its_own(
        self, make: Make, playing: Playing, study: Study
    ) -> None:
        loop = make(MANY, rules=RULES, lanes=Lanes(lambda: nodes(4)))
        jobs = playing.run(loop)
        history = history_of(study)
        starts = {start.trial_id: start for start in history.trials}
        of_search = [start for start in history.trials if start.state is State.EXPLORING]
        assert playing.most == 4 and len(of_search) == len(MANY)
        assert {start.key for start in of_search} == {candidate.key for candidate in MANY}
        for job in jobs:
            start, end = starts[job.trial_id], history.trial_end(job.trial_id)
            assert end is not None
            assert not {node for other in start.beside for node in starts[other].nodes} & set(start.nodes)
            if start.is_final:
                assert not any(starts[other].state is State.EXPLORING for other in end.beside)
            assert all(start.trial_id in ended.beside for ended in map(history.trial_end, end.beside) if ended)
        rounds = {(s.recipe.id, s.repeat, s.nodes) for s in history.trials if s.repeat and s.micro_batches}
        assert len(rounds) == len({place[:2] for place in rounds}), "what is compared ran on the same nodes"
        winner_runs = [start for start in history.trials if start.state is State.MEASURING_WINNER]
        ends = [end for start in winner_runs if (end := history.trial_end(start.trial_id))]
        assert len(ends) == 2 and not any(
            starts[other].recipe == start.recipe and starts[other].micro_batches
            for start, end in zip(winner_runs, ends, strict=True)
            for other in end.beside
        ), "whose run at length it is is known before"

    @pytest.mark.parametrize("searcher", searchers.NAMES)
    def test_nothing_is_tried_twice_and_nothing_is_left_out_in_any_number_of_lanes(
        self, searcher: str, make: Make, playing: Playing, study: Study
    ) -> None:
        playing.run(make(MANY, searcher=searcher, lanes=Lanes(lambda: nodes(5))))
        history = history_of(study)
        assert study.journal.read_text().count('"kind":"measurement"') == len(history.measurements)
        assert not any(history.missing(candidate) for candidate in MANY)
        assert winner([m for m in history.measurements if m.recipe == RECIPE]) is not None

    def test_a_budget_of_device_seconds_is_kept_to_by_all_lanes_together(
        self, make: Make, backend: Backend, clock: Clock, study: Study
    ) -> None:
        playing = Playing(backend, clock, lambda job: 20.0)
        loop = make(MANY, gpu_s=250.0, lanes=Lanes(lambda: nodes(4)))
        first = loop.next_job()
        assert first is not None and first.stop_at_s and first.stop_at_s < clock.now_s + 250.0 / 2 / 4
        playing.ends.append((clock.now_s + 20.0, 0, first))
        playing.run(loop)
        assert "device seconds" in loop.ended_reason or "too short" in loop.ended_reason
        assert 120.0 < history_of(study).gpu_s <= 250.0

    def test_few_device_seconds_measure_what_they_pay_for_in_any_number_of_lanes(
        self, make: Make, backend: Backend, clock: Clock, study: Study
    ) -> None:
        """Checks trials whose workers begin no rung after `stop_at_s`, 15 of whose 20 s are their start."""
        began_s: dict[str, float] = {}

        def play(job: Job, batch: BatchPoint) -> Measurement | TimeOut:
            is_sure = job.runs_one and batch == job.rungs[0]
            is_late = job.stop_at_s is not None and began_s[job.trial_id] + 15.0 > job.stop_at_s
            return TimeOut() if is_late and not is_sure else fast(job, batch)

        def seconds(job: Job) -> float:
            began_s[job.trial_id] = clock.now_s
            return 20.0

        backend.play = play
        for gpu_s, least in ((100.0, 2), (250.0, 6)):
            Playing(backend, clock, seconds).run(make(MANY, gpu_s=gpu_s, lanes=Lanes(lambda: nodes(4))))
            history = history_of(study)
            measured = {m.trial_id for m in history.measurements if m.tokens_per_s is not None}
            assert measured == {start.trial_id for start in history.trials} and len(measured) >= least
            assert history.gpu_s <= gpu_s
            study.journal.write_text(study.journal.read_text().splitlines(keepends=True)[0])

    def test_a_layout_with_states_in_host_memory_has_its_node_to_itself(
        self, make: Make, playing: Playing, study: Study
    ) -> None:
        on_host = [layout(dp_shard=2, offload="all", bucket_mib=size) for size in (5, 50, 100)]
        both = candidates(RECIPE, layouts=[*LAYOUTS, *on_host, layout(dp_shard=2, bucket_mib=25)])
        jobs = playing.run(make(both, lanes=Lanes(lambda: nodes(2), trials_per_node=3)))
        history, placed = history_of(study), {job.trial_id: job for job in jobs}
        assert not any(history.missing(candidate) for candidate in both) and playing.most > 2
        beside_those = set[str]()
        for start in history.trials:
            end = history.trial_end(start.trial_id)
            assert end is not None
            beside_those.update(end.beside if start.layout.steps_on_host else ())
            sharing = [other for other in end.beside if set(placed[other].nodes) & set(placed[start.trial_id].nodes)]
            assert not (start.layout.steps_on_host and sharing)
            assert placed[start.trial_id].shares_nodes is not start.layout.steps_on_host
        assert beside_those, "other nodes go on"

    def test_one_trial_measures_links_while_others_do_not_wait_for_it(self, make: Make) -> None:
        loop = make(MANY, probe_s=5.0, lanes=Lanes(lambda: nodes(3)))
        jobs = [loop.next_job() for _ in range(3)]
        assert [job and job.probe_s for job in jobs] == [5.0, None, None]

    def test_each_node_measures_its_own_products_once(self, make: Make, playing: Playing, study: Study) -> None:
        loop = make(MANY, lanes=Lanes(lambda: nodes(2)))
        playing.begin_all(loop)
        assert [job.matmul_peak_tflops for job in playing.begun] == [None, None]
        study.record(Peak(device="Made-up CPU", precision="fp32", tflops=0.5, nodes=("10.0.0.2",)))
        playing.seconds = lambda job: 0.0
        for _ in range(2):
            playing.end_one(loop)
        playing.begin_all(loop)
        assert [job.matmul_peak_tflops for job in playing.begun[2:]] == [None, 0.5]


class TestFaults:
    def test_a_lost_node_costs_its_trial_alone_and_its_layout_runs_elsewhere(
        self, make: Make, playing: Playing, study: Study
    ) -> None:
        present = nodes(4)
        loop = make(MANY, lanes=Lanes(lambda: present))
        playing.begin_all(loop)
        assert len(loop.neighbours("t0001")) == 3 and not loop.neighbours("t0001", on_its_nodes=True)
        lost_nodes: list[str] = []
        for _ in range(3):  # three at a time: more than a cluster of one lane bears
            lost = playing.ends[-1][2]
            playing.ends = [entry for entry in playing.ends if entry[2] is not lost]
            lost_nodes += lost.nodes
            address = present[lost.nodes[0]]  # Ray notices later than the trial's end
            loop.on_trial_end(lost.trial_id, state="failed", reason="gone", nodes=[address], lost_nodes=[address])
            assert not loop.fault
            playing.begin_all(loop)
        for node in lost_nodes:
            del present[node]
        present |= {"id7": "10.0.0.2"}  # a host that returns
        playing.run(loop)
        history = history_of(study)
        assert not any(history.missing(candidate) for candidate in MANY)
        ends = [end for end in map(history.trial_end, (start.trial_id for start in history.trials)) if end]
        assert [end.fault for end in ends if end.fault] == ["node lost"] * 3
        assert any("id7" in job.nodes for job in playing.begun)
        assert {m.outcome for m in history.measurements} == {Outcome.OK}

    def test_a_node_on_which_trials_do_not_start_is_left_out_and_the_others_go_on(
        self, make: Make, playing: Playing, study: Study
    ) -> None:
        loop = make(MANY, lanes=Lanes(lambda: nodes(3)))
        playing.begin_all(loop)
        for _ in range(2):
            bad = next(entry[2] for entry in playing.ends if entry[2].nodes == ("id1",))
            playing.ends = [entry for entry in playing.ends if entry[2] is not bad]
            loop.on_trial_end(bad.trial_id, state="failed", reason="no GPU is there", started=False)
            playing.begin_all(loop)
        assert {node for _, _, job in playing.ends for node in job.nodes} == {"id2", "id3"}
        playing.run(loop)
        assert not loop.fault and not any(history_of(study).missing(candidate) for candidate in MANY)

    def test_a_layout_that_dies_on_a_bad_node_runs_on_another(
        self, make: Make, backend: Backend, playing: Playing, study: Study
    ) -> None:
        loop = make(MANY, lanes=Lanes(lambda: nodes(2)))
        backend.play = lambda job, batch: Died() if job.nodes == ("id1",) else fast(job, batch)
        playing.seconds = lambda job: 5.0 if job.nodes == ("id1",) else 40.0
        playing.run(loop)
        history = history_of(study)
        assert not loop.fault and {m.outcome for m in history.measurements} == {Outcome.OK}
        assert (
            sum(end.fault == "died" for end in map(history.trial_end, (s.trial_id for s in history.trials)) if end) == 2
        )

    def test_a_trial_that_neighbours_crowded_out_of_memory_runs_again_alone(
        self, make: Make, playing: Playing, study: Study
    ) -> None:
        loop = make(MANY, lanes=Lanes(lambda: nodes(1), trials_per_node=3))
        playing.begin_all(loop)
        victim = playing.begun[1]
        assert victim.shares_nodes and len(loop.neighbours(victim.trial_id, on_its_nodes=True)) == 2
        playing.ends = [entry for entry in playing.ends if entry[2] is not victim]
        loop.on_trial_end(victim.trial_id, state="failed", reason="host memory ran out", is_crowded=True)
        jobs = playing.run(loop)
        history = history_of(study)
        again = [job for job in jobs if job.layout == victim.layout and job.recipe == victim.recipe]
        assert len(again) == 2 and not (history.trial_end(again[1].trial_id) or again).beside  # type: ignore[union-attr]
        assert {m.outcome for m in history.measurements} == {Outcome.OK}

    def test_a_fault_of_the_cluster_begins_nothing_and_lets_the_others_end(self, make: Make, playing: Playing) -> None:
        loop = make(MANY, lanes=Lanes(lambda: nodes(5)))
        playing.begin_all(loop)
        for _ in range(3):
            _, _, job = playing.ends.pop()
            loop.on_trial_end(job.trial_id, state="failed", reason="no room", started=False)
        assert loop.fault and loop.next_job() is None and not loop.state.is_terminal
        playing.run(loop)
        assert loop.state is State.FAULTED


class TestReplaying:
    @pytest.mark.parametrize("seed", range(6))
    def test_histories_of_several_trials_at_a_time_say_in_which_state_a_search_is(
        self, seed: int, make: Make, backend: Backend, clock: Clock, study: Study
    ) -> None:
        """Checks sessions of random budgets and lanes, in which trials die, fail and are cut, and which are killed with
        any number of trials in flight: nothing is lost and nothing is measured twice.
        """
        chance = random.Random(seed)
        edges = {(source, row.target) for row in TRANSITIONS for source in row.sources}

        def play(job: Job, batch: BatchPoint) -> Measurement | Died | TimeOut:
            ends, figure = chance.random(), fast(job, batch)
            measured = dataclasses.replace(figure, tokens_per_s=(figure.tokens_per_s or 0.0) * chance.uniform(0.9, 1.0))
            return Died() if ends < 0.03 else TimeOut() if ends < 0.06 else measured

        backend.play = play
        killed_with: list[int] = []
        for session in range(6):
            is_last = session == 5
            history = History(Tail(study.journal).read())
            lanes = Lanes(functools.partial(nodes, chance.randint(1, 6) + (not session)))
            budget = {} if is_last else {"time_s": chance.choice([90.0, 300.0, 1000.0])}
            loop = make(MANY, rules=RULES, searcher=chance.choice(["sweep", "guided"]), lanes=lanes, **budget)
            assert loop.state is resumed(history.state)
            playing = Playing(backend, clock, of_random_length(chance))
            num_ends, state = chance.randint(0, 7), loop.state
            while not (loop.state.is_terminal and not playing.ends):
                while (job := loop.next_job()) is not None:
                    assert (state, loop.state) in edges
                    state = loop.state
                    playing.begun.append(job)
                    playing.ends.append((clock.now_s + playing.seconds(job), len(playing.begun), job))
                playing.ends.sort(key=lambda entry: entry[:2])
                finals = [job for _, _, job in playing.ends if job.repeat or not job.rungs]
                assert len(finals) in (0, len(playing.ends)), "what follows the search runs after it"
                places = [node for _, _, job in playing.ends for node in job.nodes]
                assert len(set(places)) == len(places)
                rounds = Counter((job.recipe.id, job.repeat) for job in finals if job.rungs)
                assert all(number == 1 for number in rounds.values()), "runs of a round follow each other"
                keys = [(job.recipe.id, job.layout.id, job.repeat, not job.rungs) for _, _, job in playing.ends]
                assert len(set(keys)) == len(keys), "no layout runs twice at a time"
                if not playing.ends or (not is_last and num_ends == 0):
                    break
                num_ends -= 1
                playing.end_one(loop)
            killed_with.append(len(playing.ends))
            if loop.state.is_terminal and not playing.ends:
                study.record(End(exit_code=0, wall_s=9, gpu_s=18, left_out=loop.left_out))
            study.record(Resume())
        history = history_of(study)
        assert not any(history.missing(candidate) for candidate in MANY)
        assert study.journal.read_text().count('"kind":"measurement"') == len(history.measurements)
        assert len({start.trial_id for start in history.trials}) == len(history.trials)
        assert max(killed_with) > 1

    def test_what_was_in_flight_when_a_session_was_killed_is_what_the_next_one_begins_with(
        self, make: Make, playing: Playing, study: Study
    ) -> None:
        lanes = Lanes(lambda: nodes(3))
        loop = make(MANY, lanes=lanes)
        playing.begin_all(loop)
        playing.end_one(loop)
        playing.begin_all(loop)
        in_flight = {(job.recipe.id, job.layout.id) for _, _, job in playing.ends}
        study.record(Resume())
        again = make(MANY, lanes=lanes)
        jobs = [again.next_job() for _ in range(3)]
        assert {(job.recipe.id, job.layout.id) for job in jobs if job} == in_flight
        ends = [line for line in Tail(study.journal).read() if isinstance(line, TrialEnd)]
        assert len(ends) == 1


def test_the_same_points_are_measured_and_the_same_wins_in_one_lane_and_in_four(
    make: Make, backend: Backend, clock: Clock, study: Study
) -> None:
    def play(job: Job, batch: BatchPoint) -> Measurement:
        return result(job, batch, 1000.0 + 10 * (sum(map(ord, job.layout.id)) % 97) + batch.micro_batch)

    backend.play = play
    points: list[set[str]] = []
    best: list[Measurement | None] = []
    of_lanes: tuple[Callable[[], Lanes], ...] = (Lanes, lambda: Lanes(lambda: nodes(4)))
    for lanes in of_lanes:
        Playing(backend, clock, lambda job: 10.0).run(make(MANY, lanes=lanes()))
        measurements = history_of(study).measurements
        points.append({measurement.id for measurement in measurements})
        best.append(winner([m for m in measurements if m.recipe == RECIPE]))
        study.journal.write_text(study.journal.read_text().splitlines(keepends=True)[0])
    assert points[0] == points[1] and best[0] and best[1] and best[0].id == best[1].id
