"""The trials of one session, from its first line in the journal to its last."""

import contextlib
import dataclasses
import datetime
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.cluster import head, leftovers
from platform.cluster.nodes import ClusterHandle
from platform.cluster.probing import probe_store
from platform.cluster.probing.choices import link_sentence
from platform.common import checkout
from platform.common.errors import ClusterError
from platform.common.output import print_line
from platform.common.signals import INTERRUPT_S, INTERRUPTED, ends_when_interrupted
from platform.report.endings import last_ending, verdict
from platform.report.follow import followed
from platform.search.loop import start_timeout
from platform.search.loop.budget import Budget
from platform.search.loop.jobs import TrialSettings, planned_figures
from platform.search.loop.lanes import Lanes
from platform.search.loop.loop import SearchLoop
from platform.search.session import output
from platform.search.setup.forecast import forecast_of
from platform.search.setup.planned_line import planned
from platform.search.setup.study_setup import StudySetup
from platform.searchers.problem import Problem
from platform.study.history import History
from platform.study.study import Study
from platform.tracking.mirrors import Mirrors
from platform.tracking.system_metrics import sampled
from search_spaces.candidate import Candidate
from trainers.records.journal import End, Measured
from trainers.records.probe import Probe

PROBE_S = 5.0
"""Seconds in which a study's first trial measures devices and links."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Other:
    setup: StudySetup
    history: History
    """Its measurements before this session."""


class SessionRun:
    """The trials of one session. Call `run` once, or `run_together` with others on the same cluster."""

    def __init__(
        self,
        study: Study,
        setup: StudySetup,
        handle: ClusterHandle,
        budget: Budget,
        *,
        began_s: float,
        leftover: leftovers.Note | None = None,
        mirror: Mirrors | None = None,
        result: output.SessionOutput | None = None,
        lanes: Lanes | None = None,
        label: str = "",
        others: Sequence[Other] = (),
    ) -> None:
        """Takes over a session that began at `began_s`.

        An earlier driver's `leftover` is swept first; the `mirror` starts with the first trial. The `result` gives the
        session's exit code, and shows the result if `run` does not return: the process ends there if the cluster's head
        is lost. Trials run in `lanes` (None: one at a time). The `label` marks the session's lines. The measurements of
        `others` of the same command inform its searcher.
        """
        self._lanes, self._label, self._others = lanes, label, others
        self.study, self.setup, self.handle, self._budget = study, setup, handle, budget
        self._began_s, self._leftover = began_s, leftover
        self._mirror, self._result = mirror, result or output.SessionOutput(study)
        self._loop: SearchLoop | None = None
        self.stdout = sys.stdout
        self.ending = threading.Lock()
        """Held from its beginning by the thread that first writes the session's end."""

    def run(self) -> tuple[int, str]:
        """Searches, records the session's end, and returns exit code and reason; see `run_together`."""
        ((code, reason),) = run_together([self])
        return code, reason

    def begin(self) -> None:
        """Records the plan, and starts to mirror the journal with the first trial."""
        history, plan = self.study.follow()[1], planned(self.setup.plan)
        if history.planned is None or history.planned.layouts != plan.layouts:
            self.study.record(plan)
        measured_ids = {measurement.id for measurement in history.measurements}
        for measurement in self.setup.plan.skipped:
            if measurement.id not in measured_ids:
                self.study.record(Measured(measurement=measurement))
        if self._mirror is not None:
            self._mirror.start(is_ready=lambda: self._loop is not None and self._loop.running)

    @contextlib.contextmanager
    def searching(self, scratch: Path, on_lost: Callable[[str], None]) -> Generator[SearchLoop]:
        """Yields the session's loop and reports on its trials until leaving.

        `on_lost` gets a sentence if a trial does not start. Temporary files are in `scratch`.
        """
        from platform.search.loop import tune  # imports Ray, which reads at import the settings that `connected` made

        study = self.study
        leftovers.write_note(study.path, tune.note_of(is_local=self.handle.is_local, scratch=scratch))
        if self._leftover and (remark := tune.sweep(self._leftover)):
            print_line(remark)
        state = scratch / f"recorder-{study.name}.json"
        with tune.recorder(study.journal, state) as recorder:
            loop = self._loop = self._make_loop(recorder)
            if sentence := loop.time_sentence:
                print_line(f"{self._label}{sentence}")
            num_layouts = len(self.setup.plan.candidates)
            with (
                sampled(study.path),
                followed(*study.follow(), loop.spending, total=num_layouts, label=self._label),
                start_timeout.starts(lambda: loop.running, state, on_lost),
            ):
                yield loop

    def end(self, *, is_interrupted: bool) -> tuple[int, str]:
        """Records the session's end; returns the exit code and the reason why it has no result ("" if it has one)."""
        code, reason, fault, left_out, loop = 0, "", "", "", self._loop
        if is_interrupted:
            code = INTERRUPTED
        elif loop is not None:
            reason, left_out = loop.ended_reason, loop.left_out
            if loop.fault:
                code, fault = ClusterError.exit_code, f"{loop.fault}; {output.resume_sentence(self.study)}"
        if not code:
            code, fault = verdict(self._result.result)
            reason = fault or reason
        self.ending.acquire()
        self._record_end(code, reason, left_out)
        return code, fault

    def tell_end(self, code: int, reason: str, last_words: str) -> None:
        """Records and shows the session's end from a thread that is about to end the process."""
        self._record_end(code, reason)
        with redirect_stdout(self.stdout):  # Tune's output is being redirected at this moment
            self._result.show()
        print_line(last_words)

    def shows(self) -> bool:
        return self._result.show()

    def _probe_s(self) -> float | None:
        """Returns the seconds in which the first trial measures devices and links.

        None if they are known, or if a single CPU host has nothing to predict.
        """
        setup, handle = self.setup, self.handle
        has_links = setup.cluster.num_devices > 1 and (handle.has_gpus or len(handle.nodes) > 1)
        return PROBE_S if has_links and setup.probe is None and setup.recipes[0].has_model else None

    def _relearn(self, probe: Probe) -> searchers.Searcher[Candidate]:
        """Stores the first trial's probe for the cluster; returns a searcher that predicts with it."""
        setup, handle = self.setup, self.handle
        if setup.cluster.num_devices == handle.cluster.num_devices:
            probe = dataclasses.replace(
                probe,
                fingerprint=probe_store.fingerprint(handle.cluster, handle.software),
                cluster=handle.cluster,
                software=handle.software,
                finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
            probe_store.write(self.study.path.parent, probe)
        if sentence := link_sentence(probe):
            print_line(f"{self._label}{sentence} Predictions have these rates from now on.")
        return searchers.create(setup.request.searcher, self._problem(setup.probed(probe)))

    def _make_loop(self, recorder: str) -> SearchLoop:
        setup, handle = self.setup, self.handle
        predicted_gib, predicted_speed = planned_figures(setup.plan.candidates, setup.plan.columns)
        loop = SearchLoop(
            study=self.study,
            candidates=setup.plan.candidates,
            searcher=searchers.create(setup.request.searcher, self._problem(setup)),
            budget=self._budget,
            forecast=forecast_of(setup.plan, setup.timing),
            relearn=None if self.setup.probe else self._relearn,
            lanes=self._lanes,
            settings=TrialSettings(
                cluster=setup.cluster,
                cpus_per_worker=handle.cpus_per_worker,
                recorder=recorder,
                commit=checkout.commit(),
                nodes=tuple(node.id for node in handle.nodes) if handle.left_out else (),
                cap_gib=setup.cap_gib,
                probe_s=self._probe_s(),
                predicted_gib=predicted_gib,
                predicted_speed=predicted_speed,
                tries_misfit=setup.space.is_stand_in,
                timing=setup.timing,
                rules=setup.rules,
                hang_floor_s=setup.space.hang_floor_s,
                first_step_s=setup.space.first_step_s,
            ),
        )
        for other in self._others:
            for candidate in other.setup.plan.candidates:
                if measured := other.history.measured(candidate.key):
                    loop.overhear(candidate, measured)
        return loop

    def _problem(self, setup: StudySetup) -> Problem[Candidate]:
        return setup.problem_beside([other.setup for other in self._others])

    def _record_end(self, code: int, reason: str, left_out: str = "") -> None:
        loop = self._loop
        end = End(
            exit_code=code,
            wall_s=time.monotonic() - self._began_s,
            gpu_s=loop.spending.gpu_s if loop else 0.0,
            left_out=left_out,
            tried_all=loop.tried_all if loop else False,
            why=reason,
        )
        self.study.record(end)
        if code != ClusterError.exit_code:  # raised by the command, with how to go on
            print_line(last_ending(end, self.study.path))


def run_together(sessions: Sequence[SessionRun]) -> list[tuple[int, str]]:
    """Searches in all of these sessions at a time on their shared cluster; records how each ended.

    Returns for each session the exit code and the fault by which every trial failed ("" without one).
    """
    for session in sessions:
        session.begin()
    is_interrupted, scratch = False, leftovers.scratch_folder()
    try:
        _search(sessions, scratch)
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return [session.end(is_interrupted=is_interrupted) for session in sessions]


def _search(sessions: Sequence[SessionRun], scratch: Path) -> None:
    from platform.search.loop import tune

    handle = sessions[0].handle

    def leave_lost_cluster(reason: str) -> None:
        """Ends the process, because calls into Ray now block until Ray ends the process without a message."""
        _leave(sessions, ClusterError.exit_code, reason, lambda study: f"cluster fault: {reason}; {study}")

    with contextlib.ExitStack() as stack:
        stack.enter_context(ends_when_interrupted(lambda: _stuck(sessions)))
        stack.enter_context(head.watched(handle.head, handle.raylet, leave_lost_cluster))
        loops = [stack.enter_context(session.searching(scratch, leave_lost_cluster)) for session in sessions]
        tune.run(loops, driver_ip=handle.driver_ip, scratch=scratch)


def _stuck(sessions: Sequence[SessionRun]) -> None:
    """Ends the process some time after Ctrl-C if a call into Ray has not returned."""
    stuck = f"Ray did not end within {INTERRUPT_S:.0f} s of the interrupt: --resume sweeps what is left of it."
    _leave(sessions, INTERRUPTED, "", lambda _: stuck)
    # The main thread has written the sessions' ends, and is stuck in leaving Ray or showing a result.
    shown = [session.shows() for session in sessions]
    if any(shown):
        print_line(stuck)
    else:
        time.sleep(INTERRUPT_S)
    for session in sessions:
        session.stdout.flush()
    os._exit(INTERRUPTED)


def _leave(sessions: Sequence[SessionRun], code: int, reason: str, words: Callable[[str], str]) -> None:
    """Ends the process from another thread; returns if the ends of all sessions are already written.

    `words` makes each session's last line from the sentence on how to continue its study.
    """
    unended = [session for session in sessions if session.ending.acquire(blocking=False)]
    if not unended:
        return
    try:
        for session in unended:
            session.tell_end(code, reason, words(output.resume_sentence(session.study)))
    finally:
        for session in unended:
            session.stdout.flush()
        os._exit(code)
