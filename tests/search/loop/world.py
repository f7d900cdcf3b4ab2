"""A cluster on which anything may happen: searches share its nodes, of which any may lag, leave or join, trials end,
die or hang, and the driver is killed at any line of a journal. Trials write their lines when they come to them.
"""

import dataclasses
import heapq
import random
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.search.loop.budget import Budget
from platform.search.loop.jobs import TrialSettings
from platform.search.loop.lanes import Lanes
from platform.search.loop.loop import SearchLoop
from platform.search.loop.together import Together
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.searchers.problem import Problem
from platform.study.history import History
from platform.study.journal import Tail
from platform.study.study import Study, read
from search_spaces.candidate import Candidate
from tests.samples import header
from tests.search.loop.backend import CLUSTER, Clock, result
from tests.search.loop.conftest import TIMING
from trainers.records.job import GateSize, Job
from trainers.records.journal import End, GateCurves, Line, Measured, Peak, Profile, Resume, RungStart, TrialState
from trainers.records.measurement import Outcome
from trainers.records.sums import Sums
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout

RULES = ConfirmationRules(repeats=2, finalists=2, gate=GateSize(steps=2, sequences=4), profile=True)
START_S, RUNG_S, GATE_S = 6.0, 3.0, 4.0
MOST_TRIALS = 400
"""Trials within which a session of any search here must have ended."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One of the searches of a command."""

    candidates: tuple[Candidate, ...]
    searcher: str = "sweep"
    nodes_per_trial: int = 1
    trials_per_node: int = 1
    rules: ConfirmationRules | None = RULES


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Chances:
    """The shares of rungs and ends that go wrong."""

    dies: float = 0.0
    hangs: float = 0.0
    out_of_memory: float = 0.0
    unstarted: float = 0.0
    node_events: float = 0.0
    """Share of events at which a node leaves or joins."""
    noise: float = 0.0
    """Share by which a figure is below the point's own speed at most."""
    peaks: bool = False
    """Whether trials measure matmul peaks, which show a node's pace."""
    peak_noise: float = 0.05
    """Share by which a matmul peak is below the node's own at most."""
    races: bool = False
    """Whether a rung that is slower than the best so far is stopped."""
    predicts: bool = False
    """Whether a plan predicts the points' speeds, up to 5 % off from half of them."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """The end of a trial."""

    state: TrialState
    reason: str = ""
    started: bool = True
    is_crowded: bool = False


class Cut(Exception):
    """The driver is killed."""


class World:
    """The nodes, and the searches that share them."""

    def __init__(
        self,
        folder: Path,
        chance: random.Random,
        kinds: Sequence[Kind],
        num_nodes: int,
        *,
        cluster: Cluster = CLUSTER,
        joining_pace: float = 1.0,
    ) -> None:
        self.chance, self.kinds, self.clock = chance, kinds, Clock()
        self.cluster, self.joining_pace = cluster, joining_pace
        self.present = {f"id{number}": f"10.0.0.{number}" for number in range(1, num_nodes + 1)}
        self.gone: list[str] = []
        """Ids of nodes that left and that Ray still counts."""
        self.num_joined = num_nodes
        self.least = max(kind.nodes_per_trial for kind in kinds)
        self.pace = dict.fromkeys(self.present, 1.0)
        self.chances = Chances()
        self.budget = Budget()
        self.studies = [Study.create(folder, f"world-{number}") for number in range(len(kinds))]
        for study, kind in zip(self.studies, kinds, strict=True):
            recipes = tuple(dict.fromkeys(candidate.recipe for candidate in kind.candidates))
            study.record(header(study.name, recipes=recipes, cluster=cluster))
            self._counting(study)
        self.loops: list[SearchLoop] = []
        self.running: dict[tuple[str, str], tuple[SearchLoop, Job, float]] = {}
        """By study and trial: what runs, since when."""
        self.lines_left = -1
        """Lines after which the driver is killed; negative for never."""
        self.begun: list[tuple[SearchLoop, Job]] = []
        self.most_beside = 0

    def session(self, budget: Budget | None = None, *, lines_left: int = -1) -> None:
        """Plays a session of every search to its end, or until `lines_left` lines are written."""
        self.budget, self.lines_left = budget or Budget(), lines_left
        self.gone.clear()
        self.loops = [self._loop(study, kind) for study, kind in zip(self.studies, self.kinds, strict=True)]
        began_s, together = self.clock.now_s, Together(self.loops)
        try:
            self._play(together)
        except Cut:
            assert lines_left >= 0
        else:
            self.lines_left = -1
            for loop in self.loops:
                assert loop.state.is_terminal, "a session that begins nothing more has ended"
                wall_s = self.clock.now_s - began_s
                code = 3 if loop.fault else 0
                loop.study.record(End(exit_code=code, wall_s=wall_s, gpu_s=loop.spending.gpu_s, left_out=loop.left_out))
        self.running.clear()
        for study in self.studies:
            study.record(Resume())

    def _loop(self, study: Study, kind: Kind) -> SearchLoop:
        settings = TrialSettings(
            cluster=self.cluster, cpus_per_worker=1.0, recorder="none", commit="0123456", cap_gib=2.0, timing=TIMING,
            rules=kind.rules, predicted_speed=self._predicted(kind) if self.chances.predicts else {},
        )  # fmt: skip
        lanes = Lanes(
            lambda: dict(self.present), nodes_per_trial=kind.nodes_per_trial, trials_per_node=kind.trials_per_node
        )
        return SearchLoop(
            study=study,
            candidates=kind.candidates,
            searcher=searchers.create(kind.searcher, Problem(candidates=kind.candidates)),
            budget=self.budget,
            settings=settings,
            clock=self.clock,
            lanes=lanes,
        )

    def _predicted(self, kind: Kind) -> dict[str, dict[int, float]]:
        return {
            candidate.key: {
                micro_batch: true_speed(candidate.layout, micro_batch) * self.chance.uniform(0.475, 0.525)
                for micro_batch in candidate.micro_batches
            }
            for candidate in kind.candidates
        }

    def _play(self, together: Together) -> None:
        events: list[tuple[float, int, SearchLoop, Job, Generator[float, None, Ending]]] = []
        first = len(self.begun)
        while True:
            while (begun := together.next_job()) is not None:
                loop, job = begun
                self.begun.append(begun)
                assert len(self.begun) - first <= MOST_TRIALS, "the session does not end"
                self.running[loop.study.name, job.trial_id] = loop, job, self.clock.now_s
                self._check(loop, job)
                heapq.heappush(events, (self.clock.now_s, len(self.begun), loop, job, self._life(loop, job)))
            if not events:
                return
            if self.chance.random() < self.chances.node_events:
                self._node_event()
            now_s, number, loop, job, life = heapq.heappop(events)
            self.clock.now_s = now_s
            lost = [self.present.get(node, "") for node in job.nodes if node in self.gone]
            if lost:
                life.close()
                self._end(loop, job, Ending(state="failed", reason="gone"), lost)
                continue
            try:
                heapq.heappush(events, (now_s + next(life), number, loop, job, life))
            except StopIteration as stop:
                self._end(loop, job, stop.value, [])

    def _end(self, loop: SearchLoop, job: Job, ending: Ending, lost: list[str]) -> None:
        del self.running[loop.study.name, job.trial_id]
        on = [self.present.get(node, "") for node in job.nodes]
        loop.on_trial_end(
            job.trial_id, state=ending.state, reason=ending.reason, started=ending.started, nodes=on, lost_nodes=lost,
            is_crowded=ending.is_crowded,
        )  # fmt: skip
        for node in [node for node in self.gone if not any(node in other.nodes for _, other, _ in self._running())]:
            self.gone.remove(node)  # Ray has noticed
            self.present.pop(node, None)

    def _running(self) -> list[tuple[SearchLoop, Job, float]]:
        return list(self.running.values())

    def _node_event(self) -> None:
        staying = [node for node in self.present if node not in self.gone]
        if self.chance.random() < 0.5 and len(staying) > self.least:
            self.gone.append(self.chance.choice(staying))
            return
        if len(self.present) < 8:
            self.num_joined += 1
            node = f"id{self.num_joined}"
            self.present[node] = f"10.0.0.{self.num_joined}"
            self.pace[node] = self.joining_pace

    def _counting(self, study: Study) -> None:
        """Makes the study's lines count: behind the last of them the driver is killed."""
        record = study.record

        def counted(entry: Line) -> None:
            record(entry)
            if self.lines_left == 0:
                self.lines_left = -1
                raise Cut
            self.lines_left -= 1

        study.record = counted

    def _life(self, loop: SearchLoop, job: Job) -> Generator[float, None, Ending]:
        """Lives a trial: yields the seconds until its next line, and returns its end."""
        study, chance, chances = loop.study, self.chance, self.chances
        placed = job.nodes or tuple(self.present)[: loop.lanes.nodes_per_trial]  # anywhere
        addresses = tuple(self.present[node] for node in placed)
        slow = 1 / min(self.pace[node] for node in placed)
        yield START_S * chance.uniform(1.0, 1.5)
        if chance.random() < chances.unstarted:
            return Ending(state="failed", reason="no worker spoke", started=False)
        if chances.peaks and job.matmul_peak_tflops is None:
            tflops = tuple(0.5 * self.pace[node] * chance.uniform(1 - chances.peak_noise, 1.0) for node in placed)
            peak: dict[str, Any] = {"tflops": max(tflops), "by_device": tflops, "nodes": addresses}
            study.record(Peak(device="Made-up CPU", precision="fp32", **peak))
        if job.gate is not None:
            yield GATE_S * slow
            is_reference = not job.is_winner_run
            study.record(
                GateCurves(
                    trial_id=job.trial_id, recipe=job.recipe, layout=job.layout, steps=job.gate.steps,
                    sequences=job.gate.sequences, losses=(2.0, 1.0), grad_norms=(1.0, 1.0), is_reference=is_reference,
                ),
            )  # fmt: skip
        if job.profile is not None:
            study.record(
                Profile(
                    trial_id=job.trial_id, recipe=job.recipe, layout=job.layout, batch=job.profile, device_kind="cpu",
                    num_steps=3, measured_grad_accum=3, sums=Sums(matmul_s=1.0), trace_mib=1.0,
                ),
            )  # fmt: skip
        rung_s = (RUNG_S + (job.timing.winner_s if job.is_winner_run else 0.0)) * slow
        for number, batch in enumerate(job.rungs):
            is_sure = job.runs_one and not number
            if (
                not is_sure
                and job.stop_at_s is not None
                and self.clock.now_s + (rung_s if number else 0) > job.stop_at_s
            ):
                return Ending(state="interrupted", reason="the time budget ended before the ladder did")
            study.record(RungStart(trial_id=job.trial_id, batch=batch, deadline_s=60))
            yield rung_s
            if chance.random() < chances.dies:
                neighbours = loop.neighbours(job.trial_id, on_its_nodes=True)
                return Ending(state="failed", reason="a process is gone", is_crowded=bool(neighbours))
            if chance.random() < chances.hangs:
                hung = result(job, batch, None, outcome=Outcome.HUNG, reason="it hung", addresses=addresses)
                study.record(Measured(measurement=hung))
                return Ending(state="failed", reason="it hung")
            if batch.micro_batch > 1 and chance.random() < chances.out_of_memory:
                full = result(job, batch, None, outcome=Outcome.OOM, reason="asked for 1 GiB", addresses=addresses)
                study.record(Measured(measurement=full))
                break
            speed = true_speed(job.layout, batch.micro_batch) / slow * (1 - chances.noise * chance.random())
            is_beaten = chances.races and speed < (job.incumbent_tokens_per_s or 0.0)
            outcome = Outcome.SLOW if is_beaten else Outcome.OK
            study.record(Measured(measurement=result(job, batch, speed, outcome=outcome, addresses=addresses)))
        return Ending(state="done")

    def _check(self, loop: SearchLoop, job: Job) -> None:
        """Holds what begins to what the nodes have, and to the rules of what may run beside what."""
        running = self._running()
        self.most_beside = max(self.most_beside, len(running))
        for node in self.present:
            on_node = [other for _, other, _ in running if node in other.nodes]
            assert sum(other.node_share for other in on_node) <= 1 + 1e-9
            if len(on_node) > 1:
                assert not any(other.repeat or not other.rungs for other in on_node), "final runs have nodes alone"
        of_loop = [other for its, other, _ in running if its is loop]
        keys = Counter((other.recipe.id, other.layout.id, other.repeat, not other.rungs) for other in of_loop)
        assert max(keys.values()) == 1, "no layout runs twice at a time"
        finals = [other for other in of_loop if other.repeat or not other.rungs]
        assert len(finals) in (0, len(of_loop)), "what follows the search runs after it"
        rounds = Counter((other.recipe.id, other.repeat) for other in finals if other.rungs)
        assert max(rounds.values(), default=1) == 1, "runs of a round follow each other"
        assert not set(job.nodes) - self.present.keys(), "a node that is not there"
        assert len(set(job.nodes)) == len(job.nodes) and len(job.nodes) in (0, loop.lanes.nodes_per_trial)

    def histories(self) -> list[History]:
        """Returns what the journals say."""
        return [read(study.path)[0] for study in self.studies]


def true_speed(layout: Layout, micro_batch: int) -> float:
    """Returns the speed of a point on a node that does not lag: another one for each layout and micro-batch."""
    return 1000.0 + 10.0 * (sum(map(ord, layout.id)) % 97) + 7.0 * micro_batch


def measured_twice(study: Study) -> list[str]:
    """Returns the ids of what the journal says was measured more than once."""
    lines = [line for line in Tail(study.journal).read() if isinstance(line, Measured)]
    ids = Counter(line.measurement.id for line in lines if line.measurement.outcome is not Outcome.SKIPPED)
    return [name for name, number in ids.items() if number > 1]
