"""The loop of a training on one rank: batches, steps, reports, held-out loss, checkpoints."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from trainers import data
from trainers.engines.stepper import Engine
from trainers.host.failures import RungFailure
from trainers.marks.step import StepPhase as StepPhase
from trainers.marks.step import StepResult
from trainers.measuring.timed_steps import losses_of
from trainers.records.checkpoint_manifest import FORMAT, Manifest
from trainers.records.checkpoints import Damage, step_of
from trainers.records.measurement import Outcome
from trainers.records.plain_files import read_plain
from trainers.records.training import Begun, NotSaved, Saving, SetAside, Steps, TrainingPhase, Validated
from trainers.records.training_files import CHECKPOINTS, RECORDS, STOP, STOP_UNSAVED
from trainers.spec import engines
from trainers.spec.batch import BatchPoint
from trainers.spec.errors import InputError
from trainers.training.base_digest import base_digest
from trainers.training.checkpoint import CheckpointWriter, name_of
from trainers.training.rank import TrainingRank
from trainers.training.record_file import RecordFile
from trainers.training.validation import Validator

_MOST_STEPS = 1000


@dataclasses.dataclass(slots=True)
class _Pending:
    """Steps since the last report, whose results are still on the device."""

    results: list[StepResult] = dataclasses.field(default_factory=list[StepResult])
    rates: list[float] = dataclasses.field(default_factory=list[float])
    began_s: float = 0.0
    data_s: float = 0.0


class TrainingLoop:
    """Trains one engine from the checkpoint of `manifest`, or from the beginning."""

    def __init__(
        self,
        worker: TrainingRank,
        engine: Engine,
        manifest: Manifest | None,
        *,
        startup_s: Callable[[], float],
        set_aside: Sequence[Damage] = (),
    ) -> None:
        self._worker, self._engine, self._job, self._plan = worker, engine, worker.job, worker.job.plan
        self._rank, self._startup_s, self._set_aside = dist.get_rank(), startup_s, set_aside
        self._folder = Path(self._job.folder)
        self._writer = CheckpointWriter(
            self._folder / CHECKPOINTS, keep=self._job.keep, is_current=lambda: worker.is_current
        )
        recipe, held_out = self._plan.recipe, self._plan.validation
        self._source = data.source(recipe, held_out=0 if held_out.data else held_out.sequences)
        if manifest is not None:
            self._check_position(manifest)
        self._validator = Validator(self._plan, self._job.layout, worker.device)
        self._step = manifest.step if manifest else 0
        self._tokens = manifest.tokens if manifest else 0
        self._samples = manifest.samples if manifest else 0
        self._train_s = manifest.train_s if manifest else 0.0
        self._rate = manifest.learning_rate if manifest else 0.0
        self._saved_step = self._step if manifest else -1
        self._base = manifest.base if manifest else base_digest(engine.training_state())
        self._records = RecordFile(self._folder / RECORDS, is_current=lambda: worker.is_current)
        self._checked = False
        self._batch: BatchPoint | None = None
        """Batch point of the last step."""
        self._allowed_s: float | None = self._job.first_step_s
        """Seconds allowed for the next part of a step; None for the watchdog's own limit."""
        self._steps_begun = 0
        """Parts of steps given to the device since the last report."""
        self._report_every = 1

    def _check_position(self, manifest: Manifest) -> None:
        """Checks that the data have as many sequences as when the checkpoint was written."""
        position = self._source.position_after(manifest.samples)
        if (position.epoch, position.sample) != (manifest.epoch, manifest.sample):
            raise RungFailure(
                Outcome.FAILED,
                f"the checkpoint of step {manifest.step} stands at sequence {manifest.sample:,} of epoch"
                f" {manifest.epoch}, which is {position.sample:,} of epoch {position.epoch} in the data as they are:"
                " bring the data back, or train into another --out",
                phase="reading the checkpoint",
                rank=self._rank,
            )

    def run(self) -> str:
        """Runs steps until the attempt's phases end; returns "done", or "stopped" at the driver's request."""
        self._records.add(
            Begun(
                attempt=self._job.attempt,
                step=self._step,
                tokens=self._tokens,
                startup_s=self._startup_s(),
                layout=self._job.layout.label,
                nodes=self._worker.nodes,
                matmul_tflops=self._worker.matmul_tflops,
            )
        )
        attempt = self._job.attempt
        for damage in self._set_aside:
            path, reason = damage.path, damage.reason
            self._records.add(SetAside(attempt=attempt, step=step_of(path), name=path.name, reason=reason))
        self._clock_s = self._saved_s = time.perf_counter()
        last = math.inf if self._job.max_steps is None else self._step + self._job.max_steps
        keeps = self._job.max_steps is None
        if keeps:
            self._prepare()
        pending, stopped = _Pending(began_s=time.perf_counter()), False
        while (phase := self._phase()) is not None and not stopped and self._step < last:
            self._one_step(phase, pending)
            is_over = (following := self._phase()) is None or following.batch != phase.batch
            is_over = is_over or self._step >= last
            due = keeps and self._validation_due(phase)
            saves = self._job.checkpoint_steps is not None and self._step % self._job.checkpoint_steps == 0
            if len(pending.results) >= self._report_every or is_over or due or saves:
                late, stop = self._report(phase, pending)
                stopped = stop is not None
                if due and stop != STOP_UNSAVED:  # these steps will be repeated
                    self._validate()
                if keeps and (stop != STOP_UNSAVED if stopped else saves or late or is_over):
                    self._save()
                pending = _Pending(began_s=time.perf_counter())
        self._finish()
        return "stopped" if stopped and self._phase() is not None else "done"

    def _prepare(self) -> None:
        """Tries before the first step work that may fail later: memory for copies, a held-out loss, a checkpoint."""
        if shortage := self._writer.memory_shortage(self._engine):
            raise RungFailure(Outcome.FAILED, shortage, phase="first checkpoint", rank=self._rank)
        begins = self._saved_step < 0
        if begins and self._validator.is_on:
            self._validate()
        if begins and self._plan.initial_weights:  # a seed gives its weights again, but a folder may change
            self._save()
            if self._writer.is_done:  # for lack of room
                self._records.add_checkpoint(self._writer.finish())
        elif shortage := self._writer.disk_shortage(self._engine):
            self._records.add(NotSaved(attempt=self._job.attempt, step=self._step, reason=shortage))

    def _phase(self) -> TrainingPhase | None:
        """Returns the phase of the next step; None if it has another layout, or the training has ended."""
        phase = self._plan.phase_at(self._tokens)
        return phase if phase is not None and phase.layout == self._job.layout else None

    def _one_step(self, phase: TrainingPhase, pending: _Pending) -> None:
        worker, layout = self._worker, self._job.layout
        if phase.batch != self._batch:  # code is compiled anew for another micro-batch
            self._batch, self._allowed_s = phase.batch, self._job.first_step_s
        began_s = time.perf_counter()
        position = self._source.position_after(self._samples)
        coordinate = layout.data_parallel_rank(self._rank)
        micro_batches: list[torch.Tensor] = []
        for micro_step in range(phase.batch.grad_accum):
            indices = data.sample_indices(
                phase.batch, data_parallel=layout.data_parallel, rank=coordinate, micro_step=micro_step
            )
            tokens = torch.from_numpy(self._source.tokens(position, indices))
            if worker.device.type == "cuda":  # a copy from pageable memory may wait for earlier steps
                tokens = tokens.pin_memory()
            micro_batches.append(tokens.to(worker.device, non_blocking=True))
        pending.data_s += time.perf_counter() - began_s
        per_step = self._plan.tokens_per_step(phase)
        share = self._plan.lr_schedule.share_at(self._tokens + per_step)
        self._rate = self._plan.recipe.learning_rate * share
        self._engine.set_learning_rate(self._rate)
        worker.activity = f"step {self._step + 1}"
        pending.results.append(self._engine.step(micro_batches, self))
        pending.rates.append(self._rate)
        self._step += 1
        self._tokens += per_step
        self._samples += phase.global_batch
        if not self._checked:
            self._check_engine(phase)

    def begin(self, phase: StepPhase) -> None:
        """Tells the watchdog that a part of a step begins; called by the engine."""
        self._worker.watchdog.beat(phase, allowed_s=self._allowed_s, pending=self._steps_begun)
        self._steps_begun += 1

    def _check_engine(self, phase: TrainingPhase) -> None:
        """Checks, after the engine's first step, that its settings equal the plan's."""
        recipe = dataclasses.replace(self._plan.recipe, learning_rate=self._rate or self._plan.recipe.learning_rate)
        accum = phase.batch.grad_accum
        wrong = engines.mismatches(self._engine.in_effect(), recipe, self._job.layout, grad_accum=accum)
        if wrong and self._rate:
            raise RungFailure(Outcome.FAILED, "; ".join(wrong), phase="step 1", rank=self._rank)
        self._checked = True

    def _report(self, phase: TrainingPhase, pending: _Pending) -> tuple[bool, str | None]:
        """Records the pending steps. Returns whether a checkpoint is due by the clock, and the text of the driver's
        request to end the attempt (None for no request); the same on every rank.
        """
        self._worker.activity = f"step {self._step}"
        losses = losses_of(pending.results, self._worker.gather)
        self._allowed_s = None
        norms = [float(result.grad_norm) for result in pending.results]
        labels = [int(result.num_labels) for result in pending.results if result.num_labels is not None]
        now_s = time.perf_counter()
        steps_s = now_s - pending.began_s
        self._count_time(now_s)
        first = self._step - len(losses) + 1
        wrong = diverged(first, losses, norms, skips=self._plan.recipe.compute_precision == "fp16")
        self._worker.watchdog.saw(steps_s / sum(len(result.phases) for result in pending.results))
        own_answer = None
        if self._rank == 0:
            num_steps = round(self._job.report_s * len(losses) / max(steps_s, 1e-6))
            late = self._job.checkpoint_steps is None and now_s - self._saved_s >= self._job.checkpoint_s
            stop = self._stop()
            own_answer = (max(1, min(_MOST_STEPS, num_steps)), late, stop)
        (peak,) = self._worker.meter.peaks()
        answers = self._worker.gather((own_answer, peak.allocated_gib))
        self._report_every, late, stop = answers[0][0]
        self._steps_begun = 0
        if self._writer.is_done:
            self._records.add_checkpoint(self._writer.finish())
        self._records.add(
            Steps(
                attempt=self._job.attempt,
                first_step=first,
                losses=tuple(losses),
                grad_norms=tuple(norms),
                learning_rates=tuple(pending.rates),
                tokens=self._tokens,
                tokens_per_step=self._plan.tokens_per_step(phase),
                trained_tokens=sum(labels) if self._plan.recipe.trained_tokens != "all" else None,
                train_s=self._train_s,
                steps_s=steps_s,
                data_s=pending.data_s,
                peak_gib=max(peak for _, peak in answers),
            )
        )
        if wrong:
            reason = f"{wrong}: train with a lower learning rate, into another --out"
            raise RungFailure(Outcome.DIVERGED, reason, phase=self._worker.activity, rank=self._rank)
        return late, stop

    def _stop(self) -> str | None:
        """Returns the text of the driver's request to end the attempt; None if there is none."""
        if not self._worker.is_current:
            return STOP_UNSAVED
        path = self._folder / STOP
        try:
            return read_plain(path).decode("utf-8", "replace") if os.path.lexists(path) else None
        except InputError:
            return ""

    def _count_time(self, now_s: float) -> None:
        self._train_s += now_s - self._clock_s
        self._clock_s = now_s

    def _validation_due(self, phase: TrainingPhase) -> bool:
        every_tokens, per_step = self._plan.validation.every_tokens, self._plan.tokens_per_step(phase)
        if not self._validator.is_on:
            return False
        return (
            self._tokens // every_tokens > (self._tokens - per_step) // every_tokens
            or self._tokens >= self._plan.tokens
        )

    def _validate(self) -> None:
        began_s = time.perf_counter()
        self._worker.activity = f"held-out loss after step {self._step}"
        before, self._allowed_s = self._allowed_s, self._job.first_step_s  # compiled anew without gradients
        held_out = self._validator.loss(self._engine, self._worker.gather, self.begin)
        self._allowed_s, self._steps_begun = before, 0
        now_s = time.perf_counter()
        self._count_time(now_s)
        self._records.add(
            Validated(
                attempt=self._job.attempt,
                step=self._step,
                tokens=self._tokens,
                loss=held_out.loss,
                train_s=self._train_s,
                wall_s=now_s - began_s,
                fullest=held_out.fullest,
                empty=held_out.empty,
            )
        )

    def _save(self) -> None:
        if self._saved_step == self._step:
            return
        self._worker.activity = f"checkpoint of step {self._step}"
        self._worker.watchdog.pause()  # slow writing to a shared disk is no hang
        counters, position = self._engine.counters(), self._source.position_after(self._samples)
        manifest = Manifest(
            format=FORMAT,
            recipe_id=self._plan.recipe.id,
            step=self._step,
            tokens=self._tokens,
            samples=self._samples,
            epoch=position.epoch,
            sample=position.sample,
            optimizer_step=counters.optimizer_step,
            loss_scale=counters.loss_scale,
            loss_scale_steps=counters.loss_scale_steps,
            learning_rate=self._rate,
            lr_schedule=self._plan.lr_schedule,
            train_s=self._train_s,
            layout=self._job.layout.label,
            attempt=self._job.attempt,
            base=self._base,
        )
        self._records.add_checkpoint(self._writer.finish())
        name, gib = name_of(manifest), self._writer.gib(self._engine)
        self._records.add(Saving(attempt=self._job.attempt, step=self._step, name=name, gib=gib))
        self._records.add_checkpoint(self._writer.save(self._engine, manifest))
        self._saved_step = self._step
        self._saved_s = time.perf_counter()
        self._count_time(self._saved_s)

    def _finish(self) -> None:
        self._worker.watchdog.pause()
        last = self._writer.finish()
        self._records.add_checkpoint(last)
        if not self._records.finish():
            raise RungFailure(Outcome.FAILED, "the disk is full", phase="end", rank=0)
        if last is not None and last.error:
            raise RungFailure(
                Outcome.FAILED, f"the last checkpoint could not be written: {last.error}", phase="end", rank=0
            )
        self._engine.close()


def diverged(first_step: int, losses: Sequence[float], norms: Sequence[float], *, skips: bool) -> str:
    """Returns a clause on the first step with a loss or gradient norm that is not finite; "" if there is none. A step
    with such a norm leaves NaN weights unless it `skips` its update, as fp16 does.
    """
    for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=first_step):
        if not math.isfinite(loss):
            return f"the loss of step {step} is {loss}"
        if not skips and not math.isfinite(norm):
            return f"the gradient norm of step {step} is {norm}"
    return ""
