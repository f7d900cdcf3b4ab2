"""One session of a training: runs attempts until the training is done, and reports progress."""

import dataclasses
import math
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from platform.cluster import head
from platform.cluster.nodes import ClusterHandle
from platform.common.errors import ClusterError, InputError
from platform.common.signals import INTERRUPTED, counted_interrupts, still_ending
from platform.cost_model.memory import lower_bound
from platform.train.interrupt import CheckpointWatch
from platform.train.progress import TrainingProgress
from platform.train.promise import Promise, memory_growth, shortfall
from platform.train.training_folder import TrainingFolder
from trainers.host.failures import size
from trainers.records.training import Begun, Record, Saved, Steps, TrainingJob, TrainingPhase, TrainingPlan
from trainers.records.training_lines import Reader
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.support import refusal

if TYPE_CHECKING:
    from trainers.training.attempt import AttemptEnd

_REMAIN = "; the checkpoints remain: the same command resumes the training"
_MOST_LOST = 5
"""Largest number of attempts in a row that may be lost without a new checkpoint or a further step."""
_LOOK_S = 0.5
_TELL_S = 10.0
"""Seconds between two lines on the checkpoint that an interrupted training saves."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSettings:
    """The interval between checkpoints, and the number of checkpoints kept."""

    checkpoint_s: float
    checkpoint_steps: int | None
    keep: int
    grace_s: float | None = None
    """Seconds after an interrupt within which a checkpoint must be complete; None for no limit."""
    promise: Promise | None = None
    """The figures measured by the search; None if unknown or if the batch changes."""


def check_layouts(plan: TrainingPlan, cluster: Cluster) -> None:
    """Checks that the cluster's devices can run the layouts of all phases, by number, rules and memory.

    Raises:
        InputError: the first such one.
    """
    for phase in plan.phases:
        world_size = phase.layout.world_size
        if world_size > cluster.num_devices:
            raise InputError(
                f"the layout {phase.layout.label} takes {world_size} devices, the cluster has {cluster.num_devices}:"
                " give the layout.json of a search on so many devices and the same --out"
            )
        if reason := refusal(plan.recipe, phase.layout, _part_of(cluster, phase.layout)):
            raise InputError(reason)
        bound = lower_bound(plan.recipe, phase.layout, phase.batch)
        if bound.total_gib > cluster.device_memory_gib:
            raise InputError(
                f"{plan.recipe.model.name} with the layout {phase.layout.label}, micro-batch {phase.batch.micro_batch},"
                f" needs {bound.sentence}; a {cluster.device_word} ({cluster.device}) has"
                f" {size(cluster.device_memory_gib)}: train where there is more, or give another layout.json"
            )


def _part_of(cluster: Cluster, layout: Layout) -> Cluster:
    if layout.world_size == cluster.num_devices:
        return cluster
    return dataclasses.replace(cluster, num_nodes=1, devices_per_node=layout.world_size)


class Attempts:
    """The attempts of one call of the command."""

    def __init__(
        self, folder: TrainingFolder, plan: TrainingPlan, handle: ClusterHandle, settings: CheckpointSettings
    ) -> None:
        self._folder, self._plan, self._handle, self._settings = folder, plan, handle, settings
        self._reader = Reader(folder.records)
        self._checkpoints = CheckpointWatch(folder.path)
        self._checkpoints.add([record for record in self._reader.read() if isinstance(record, Saved)])
        self._last_step = 0
        self._of_attempt: list[Record] = []
        self._warned: set[str] = set()

    def run(self) -> int:
        """Trains to the end; returns 0, or `INTERRUPTED` after an interrupt.

        Raises:
            ClusterError: workers were lost again and again, or failed for a reason that would come again.
        """
        progress, num_lost, storage = TrainingProgress(self._plan), 0, Path(tempfile.mkdtemp(prefix="layout-training-"))
        model, data = self._plan.recipe.model, self._plan.recipe.data
        stand_in = f", a small model that stands in for {model.miniature_of}" if model.miniature_of else ""
        devices = _part_of(self._handle.cluster, self._plan.phases[0].layout).label
        progress.print_line(
            f"Trains {model.name}{stand_in}, on {devices}, on data {data}. {self._plan.recipe.regularization}"
        )
        if self._plan.recipe.adapter_rank and not self._plan.initial_weights:
            progress.print_line("The frozen weights are drawn from the seed: --start-from gives those of a model.")
        try:
            while (phase := self._plan.phase_at(saved := self._folder.tokens_saved())) is not None:
                before = self._last_step
                attempt, interrupted = self._attempt(phase, storage, progress)
                if interrupted or attempt.state == "stopped":
                    return INTERRUPTED
                if attempt.state == "failed":
                    raise ClusterError(f"the training ended: {attempt.reason}")
                # A different checkpoint counts as progress, even an older one after the newest was found damaged.
                further = self._folder.tokens_saved() != saved or self._last_step > before
                if attempt.state == "done" and not further:
                    raise ClusterError(f"the workers ended, and no checkpoint is visible in {self._folder.path}")
                if attempt.state == "lost":
                    num_lost = 0 if further else num_lost + 1
                    if num_lost >= _MOST_LOST:
                        raise ClusterError(
                            f"workers were lost {num_lost} times without a further step, last because"
                            f" {attempt.reason}{_REMAIN}"
                        )
                    progress.print_line(
                        f"A worker was lost ({attempt.reason}): the training resumes from the newest checkpoint."
                    )
            return 0
        finally:
            progress.close()
            shutil.rmtree(storage, ignore_errors=True)

    def _attempt(self, phase: TrainingPhase, storage: Path, progress: TrainingProgress) -> "tuple[AttemptEnd, bool]":
        """Runs one attempt at `phase`; returns its end, and whether the user interrupted it."""
        from trainers.training import attempt  # imports torch

        handle, settings = self._handle, self._settings
        if fault := head.loss_of(handle.raylet):
            raise ClusterError(f"the training ended: {fault}{_REMAIN}")
        job = TrainingJob(
            plan=self._plan,
            folder=str(self._folder.path),
            attempt=self._folder.next_attempt(),
            layout=phase.layout,
            cluster=handle.cluster,
            cpus_per_worker=handle.cpus_per_worker,
            checkpoint_s=settings.checkpoint_s,
            checkpoint_steps=settings.checkpoint_steps,
            keep=settings.keep,
        )
        nodes = tuple(node.id for node in handle.nodes) if handle.left_out else ()
        ends: list[AttemptEnd] = []
        faults: list[str] = []
        is_over = threading.Event()

        def run() -> None:
            try:
                ends.append(attempt.run(job, storage, nodes))
            finally:
                is_over.set()

        def lose_cluster(fault: str) -> None:
            faults.append(f"{fault}{_REMAIN}")
            is_over.set()

        threading.Thread(target=run, daemon=True).start()
        with head.watched(handle.head, handle.raylet, lose_cluster):
            interrupted = self._follow(is_over, progress)
        if interrupted:
            failed = [end.reason for end in ends if end.state in ("failed", "lost")] + faults
            if failed:
                progress.print_line(f"It ended before that: {failed[0]}")
            return attempt.AttemptEnd(state="stopped"), True
        if faults:
            return attempt.AttemptEnd(state="failed", reason=faults[0]), False
        return (
            ends[0] if ends else attempt.AttemptEnd(state="failed", reason="its thread ended without a message")
        ), False

    def _follow(self, is_over: threading.Event, progress: TrainingProgress) -> bool:
        """Shows the attempt's progress until it ends; returns whether the user interrupted it."""
        until_s, last_s, last_bytes, told_s = math.inf, 0.0, 0, 0.0
        # `Thread.join` is not used: if a join is interrupted, Python 3.11 marks the thread as ended
        # (python/cpython#90882).
        with counted_interrupts() as interrupts:
            while not is_over.is_set() and len(interrupts) < 2:
                is_over.wait(_LOOK_S)
                has_new = self._show(progress)
                if not interrupts:
                    continue
                still_ending()
                now_s, written = time.monotonic(), self._checkpoints.written()
                if until_s == math.inf and not last_s:
                    answer = self._checkpoints.answer(self._settings.grace_s)
                    self._folder.ask_to_stop(saves=answer.saves)
                    progress.print_line(answer.sentence)
                    until_s = interrupts[0] + (math.inf if self._settings.grace_s is None else self._settings.grace_s)
                    told_s = now_s
                if has_new or written != last_bytes or not last_s:
                    last_s, last_bytes = now_s, written
                if now_s >= until_s or now_s - last_s > self._checkpoints.quiet_s:
                    progress.print_line("The time for a checkpoint is over: the training ends without it.")
                    break
                if now_s - told_s >= _TELL_S and (state := self._checkpoints.progress()):
                    told_s = now_s
                    progress.print_line(f"{state[0].upper()}{state[1:]}.")
        self._show(progress)
        return bool(interrupts)

    def _show(self, progress: TrainingProgress) -> bool:
        """Shows new records; returns whether there are any."""
        records = self._reader.read()
        self._checkpoints.add(records)
        progress.writing = self._checkpoints.progress()
        if not records:
            return False
        steps = [entry.last_step for entry in records if isinstance(entry, Steps)]
        self._last_step = max([self._last_step, *steps])
        for record in records:
            if isinstance(record, Begun):
                self._of_attempt.clear()
            self._of_attempt.append(record)
        progress.add(records)
        promise = self._settings.promise
        for kind, sentence in (
            ("speed", "" if promise is None else shortfall(promise, self._of_attempt)),
            ("memory", memory_growth(self._of_attempt) if self._handle.has_gpus else ""),
        ):
            if sentence and kind not in self._warned:
                self._warned.add(kind)
                progress.print_line(sentence)
        return True
