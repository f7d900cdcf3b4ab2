"""Estimates the time of confirmation trials from the study's measurements."""

import dataclasses

from trainers.measuring.ladder import AGAIN, timed_accum
from trainers.records.job import GateSize, Timing
from trainers.records.measurement import Measurement

UNKNOWN_SLOWDOWN = 2.5
"""Assumed step time of a reference that has not run, over the winner's. BLOOM-7b1 on an H200: 2.3, eager
attention and plain loss against flex and chunked (docs/lab/gate.csv#bloom-gated-one.3).
"""
_SKETCHING_S = 1.4
"""Seconds of `_sketching_s` for a billion parameters on one device. Qwen3-8B on an H200: 10 and 12 s
(docs/lab/gate.csv#gate-8b-h200).
"""
PROFILED_STEPS = 8
"""Steps of a profiling trial (`trainers.profiling.profiled_steps`), of which the first may compile."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmationCosts:
    """Estimated seconds of confirmation trials."""

    start_s: float
    """Seconds of a trial beyond its steps (processes, imports, building the model, the end); 0 before any."""
    trial_s: float
    """Seconds from the start of a short trial of one rung to the next trial's start; 0 before the first."""
    cold_s: float = 0.0
    """Seconds beyond `start_s` that the next trial takes to start if it is its session's first."""
    timing: Timing

    def repeat_s(self, measurement: Measurement) -> float:
        """Returns the seconds of a finalist's run: the steps of the search's `measurement`, in a separate trial."""
        return self.start_s + _compiled_anew_s(measurement) + sum(measurement.step_times_s)

    def ready_s(self, measurement: Measurement) -> float:
        """Returns the seconds from a trial's start to its first timed step if it runs like `measurement`."""
        warm_up_s = sum(measurement.step_times_s[: measurement.warmup_steps])
        return self.start_s + _compiled_anew_s(measurement) + warm_up_s

    def measuring_s(self, best: Measurement) -> float:
        """Returns the seconds of the windows of a winner's run at length.

        It has at least three timed steps, preceded by a warm-up step if they have more micro-steps than the search's.
        """
        # Where a few micro-steps exceed the allowed time, as few are timed as in the search.
        step_s = max(min(best.step_time_s or 0.0, self.timing.longest_step_s), *best.windows_s, 0.0)
        warm_up_s = 0.0 if self.timing.whole_steps else step_s
        return warm_up_s + max(self.timing.winner_s, self.timing.min_windows * step_s)

    def run_s(self, best: Measurement) -> float:
        """Returns the seconds of a winner's run at length without its numerics gate."""
        return self.ready_s(best) + self.measuring_s(best)

    def profile_s(self, measurement: Measurement) -> float:
        """Returns the seconds of a trial that profiles `measurement`.

        They are those of a short trial. If rungs have fixed steps, they are those of the profiled steps, with few
        micro-steps if these can be timed.
        """
        if not self.timing.fixes_steps:
            return self.trial_s
        accum = measurement.batch.grad_accum
        share = 1.0 if measurement.last_micro_step_s is None else timed_accum(accum) / accum
        return (
            self.start_s
            + sum(measurement.step_times_s[:1])
            + (PROFILED_STEPS - 1) * share * (measurement.step_time_s or 0.0)
        )

    def gate_s(self, gate: GateSize, best: Measurement, measurement: Measurement | None) -> float:
        """Returns the seconds of a layout's numerics gate at the speed of its `measurement`.

        A reference without a measurement is assumed to be slower than the winner `best` by `UNKNOWN_SLOWDOWN`.
        """
        speed = measurement.tokens_per_s if measurement is not None else None
        speed = speed or (best.tokens_per_s or 0.0) / UNKNOWN_SLOWDOWN
        return gate.steps * gate.sequences * best.recipe.seq_len / speed if speed else 0.0

    def winner_gate_s(self, gate: GateSize, best: Measurement) -> float:
        """Returns the seconds that the gate adds to the winner's run: its steps, sketches and another compilation."""
        return self.gate_s(gate, best, measurement=best) + AGAIN * _compile_s(best) + _sketching_s(best)

    def reference_gate_s(self, gate: GateSize, best: Measurement, measurement: Measurement | None) -> float:
        """Returns the seconds of the reference's gate in processes of its own, with one more step than the winner's.

        Nothing is timed there, so nothing warms up. A reference without a `measurement` has the plainest kernels and
        is not compiled.
        """
        steps_s = self.gate_s(gate, best, measurement) * (gate.steps + 1) / gate.steps
        return self.start_s + (_compile_s(measurement) if measurement else 0.0) + steps_s + _sketching_s(best)


def _sketching_s(best: Measurement) -> float:
    """Returns the seconds that a gate takes beside its steps: weights sharpened and restored, tensors sketched."""
    if not best.recipe.has_model:
        return 0.0
    return _SKETCHING_S * best.recipe.model.num_parameters / 1e9 / best.layout.world_size


def _compile_s(measurement: Measurement) -> float:
    """Returns the seconds of compilation in fresh processes, which take longer than in a trial's later rungs."""
    is_first = measurement.startup_s is not None
    return (1.0 if is_first else 1 / AGAIN) * (measurement.compile_s or 0.0)


def _compiled_anew_s(measurement: Measurement) -> float:
    """Returns the additional seconds of compilation in fresh processes, compared with the measurement's."""
    return _compile_s(measurement) - (measurement.compile_s or 0.0)


UNLIMITED = ConfirmationCosts(start_s=0.0, trial_s=0.0, timing=Timing())
"""Costs for a session without a budget."""
