"""What final trials take, estimated from what the study has measured."""

import dataclasses

from trainers.job import GateSize, Timing
from trainers.measurement import Measurement

UNKNOWN_SLOWDOWN = 2.5
"""How many times slower than the winner a reference that has not run is taken to be. BLOOM-7b1 on an H200: 2.3, eager
attention and plain loss against flex and chunked (docs/measurements/bloom7b.md)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Seconds of final trials."""

    trial_s: float
    """Of a trial of one rung, from its start to the next one's; 0 before the first."""
    timing: Timing

    def measuring_s(self, best: Measurement) -> float:
        """The windows of a winner's last run, beyond a plain trial: a step to warm up and three at the least."""
        step_s = min(best.step_time_s or 0.0, self.timing.longest_step_s)
        return step_s + max(self.timing.winner_s, self.timing.min_windows * step_s)

    def gate_s(self, gate: GateSize, best: Measurement, of: Measurement | None) -> float:
        """The steps of a layout's numerics gate, at the speed of its measurement `of`; a reference that has none is
        taken to be slower than the winner `best`.
        """
        speed = of.tokens_per_s if of is not None else None
        speed = speed or (best.tokens_per_s or 0.0) / UNKNOWN_SLOWDOWN
        return gate.steps * gate.sequences * best.recipe.seq_len / speed if speed else 0.0


UNLIMITED = Costs(trial_s=0.0, timing=Timing())
"""Where no budget is to be kept."""
