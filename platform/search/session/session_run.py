"""The trials of one session, from its first line in the journal to its last."""

import dataclasses
import datetime
import os
import shutil
import sys
import threading
import time
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
from platform.search.loop.jobs import TrialSettings, planned_gib
from platform.search.loop.lanes import Lanes
from platform.search.loop.loop import SearchLoop
from platform.search.session import output
from platform.search.setup.forecast import forecast_of
from platform.search.setup.planned_line import planned
from platform.search.setup.study_setup import StudySetup
from platform.study.study import Study
from platform.tracking.mirrors import Mirrors
from platform.tracking.system_metrics import sampled
from search_spaces.candidate import Candidate
from trainers.records.journal import End, Measured
from trainers.records.probe import Probe

PROBE_S = 5.0
"""Seconds in which a study's first trial measures devices and links."""


class SessionRun:
    """The trials of one session. Call `run` once."""

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
    ) -> None:
        """Takes over a session that began at `began_s`.

        The `leftover` of an earlier driver on the cluster is swept first; the `mirror` starts with the first trial. The
        `result` states the session's exit code, and shows what was measured if `run` does not return: the process ends
        in it when the cluster's head is gone. Trials run in `lanes`; None: one at a time.
        """
        self._lanes = lanes
        self._study, self._setup, self._handle, self._budget = study, setup, handle, budget
        self._began_s, self._leftover = began_s, leftover
        self._mirror, self._result = mirror, result or output.SessionOutput(study)
        self._loop: SearchLoop | None = None
        self._stdout = sys.stdout
        self._ending = threading.Lock()
        """Held, from the moment it begins, by the thread that first writes the session's end."""

    def run(self) -> tuple[int, str]:
        """Searches, records how the session ended, and returns the exit code and reason.

        The reason is what every trial failed with, "" for nothing.
        """
        self._record_plan()
        if self._mirror is not None:
            self._mirror.start(is_ready=lambda: self._loop is not None and self._loop.running)
        code, reason, fault, left_out, scratch = 0, "", "", "", leftovers.scratch_folder()
        try:
            loop = self._search(scratch)
            reason, left_out = loop.ended_reason, loop.left_out
            if loop.fault:
                code, fault = ClusterError.exit_code, f"{loop.fault}; {output.resume_sentence(self._study)}"
        except KeyboardInterrupt:
            code = INTERRUPTED
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if not code:
            code, fault = verdict(self._result.result)
            reason = fault or reason
        self._ending.acquire()
        self._record_end(code, reason, left_out)
        return code, fault

    def _record_plan(self) -> None:
        history, plan = self._study.follow()[1], planned(self._setup.plan)
        if history.planned is None or history.planned.layouts != plan.layouts:
            self._study.record(plan)
        measured_ids = {measurement.id for measurement in history.measurements}
        for measurement in self._setup.plan.skipped:
            if measurement.id not in measured_ids:
                self._study.record(Measured(measurement=measurement))

    def _search(self, scratch: Path) -> SearchLoop:
        from platform.search.loop import tune  # imports Ray, which reads at import the settings that `connected` made

        study, handle = self._study, self._handle
        leftovers.write_note(study.path, tune.note_of(is_local=handle.is_local, scratch=scratch))
        if self._leftover and (remark := tune.sweep(self._leftover)):
            print_line(remark)
        state = scratch / "recorder.json"
        with (
            ends_when_interrupted(self._stuck),
            head.watched(handle.head, handle.raylet, self._leave_lost_cluster),
            tune.recorder(study.journal, state) as recorder,
        ):
            loop = self._loop = self._make_loop(recorder)
            if sentence := loop.time_sentence:
                print_line(sentence)
            num_layouts = len(self._setup.plan.candidates)
            with (
                sampled(study.path),
                followed(*study.follow(), loop.spending, total=num_layouts),
                start_timeout.starts(lambda: loop.running, state, self._leave_lost_cluster),
            ):
                tune.run(loop, driver_ip=handle.driver_ip, scratch=scratch)
        return loop

    def _probe_s(self) -> float | None:
        """Returns the seconds in which the first trial measures devices and links; None where they are known, or one
        host of CPUs has nothing to predict.
        """
        setup, handle = self._setup, self._handle
        has_links = setup.cluster.num_devices > 1 and (handle.has_gpus or len(handle.nodes) > 1)
        return PROBE_S if has_links and setup.probe is None and setup.recipes[0].has_model else None

    def _relearn(self, probe: Probe) -> searchers.Searcher[Candidate]:
        """Keeps for the cluster what the first trial measured; returns a searcher whose predictions have it."""
        setup, handle = self._setup, self._handle
        if setup.cluster.num_devices == handle.cluster.num_devices:
            probe = dataclasses.replace(
                probe,
                fingerprint=probe_store.fingerprint(handle.cluster, handle.software),
                cluster=handle.cluster,
                software=handle.software,
                finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
            probe_store.write(self._study.path.parent, probe)
        if sentence := link_sentence(probe):
            print_line(f"{sentence} Predictions have these rates from now on.")
        return searchers.create(setup.request.searcher, setup.probed(probe).problem)

    def _make_loop(self, recorder: str) -> SearchLoop:
        setup, handle = self._setup, self._handle
        return SearchLoop(
            study=self._study,
            candidates=setup.plan.candidates,
            searcher=searchers.create(setup.request.searcher, setup.problem),
            budget=self._budget,
            forecast=forecast_of(setup.plan, setup.timing),
            relearn=None if self._setup.probe else self._relearn,
            lanes=self._lanes,
            settings=TrialSettings(
                cluster=setup.cluster,
                cpus_per_worker=handle.cpus_per_worker,
                recorder=recorder,
                commit=checkout.commit(),
                nodes=tuple(node.id for node in handle.nodes) if handle.left_out else (),
                cap_gib=setup.cap_gib,
                probe_s=self._probe_s(),
                predicted_gib=planned_gib(setup.plan.candidates, setup.plan.columns),
                tries_misfit=setup.space.is_stand_in,
                timing=setup.timing,
                rules=setup.rules,
                hang_floor_s=setup.space.hang_floor_s,
                first_step_s=setup.space.first_step_s,
            ),
        )

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
        self._study.record(end)
        if code != ClusterError.exit_code:  # it is raised, or printed by `_leave_lost_cluster`, with how to go on
            print_line(last_ending(end, self._study.path))

    def _leave_lost_cluster(self, reason: str) -> None:
        """Ends the process: calls into Ray now block until Ray ends the process without a message."""
        self._leave(ClusterError.exit_code, reason, f"cluster fault: {reason}; {output.resume_sentence(self._study)}")

    def _stuck(self) -> None:
        """Ends the process some time after Ctrl-C where a call into Ray has not returned."""
        stuck = f"Ray did not end within {INTERRUPT_S:.0f} s of the interrupt: --resume sweeps what is left of it."
        self._leave(INTERRUPTED, "", stuck)
        # The main thread has written the session's end, and is stuck in leaving Ray, or showing the result.
        if self._result.show():
            print_line(stuck)
        else:
            time.sleep(INTERRUPT_S)
        self._stdout.flush()
        os._exit(INTERRUPTED)

    def _leave(self, code: int, reason: str, last_words: str) -> None:
        """Ends the process from another thread; returns where the session's end is already written."""
        if not self._ending.acquire(blocking=False):
            return
        try:
            self._record_end(code, reason)
            with redirect_stdout(self._stdout):  # Tune's output is kept from it just now
                self._result.show()
            print_line(last_words)
        finally:
            self._stdout.flush()
            os._exit(code)
