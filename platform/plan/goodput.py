"""Days from the first step to the last, including checkpoints, restarts and failures.

A training on nodes that fail at random is a series of segments, each a time of steps with a checkpoint behind it; one
that a failure meets is run again after a restart. Its expected time is that of J. T. Daly, "A higher order estimate of
the optimum checkpoint interval for restart dumps" (Future Generation Computer Systems 22, 2006,
doi:10.1016/j.future.2004.11.016), for failures without memory:

    T = M exp(R / M) (exp((t + d) / M) - 1) S / t

with M the mean time between failures of all nodes, R a restart, t the time of steps between checkpoints, d the time
that one of them stops the steps, S the time of all steps.
"""

import dataclasses
import math

from platform.cost_model.hardware import ClusterSpec
from platform.plan.planned import DAY_S, PredictedLayout
from trainers.spec.recipe import Recipe

NODE_MTBF_S = 264 * DAY_S
"""Mean time between failures of a node with eight devices: 419 interruptions in 54 days on 2,048 nodes (Llama 3, arXiv
2407.21783, section 3.3.4).
"""
_LEAST_MTBF_S, _MOST_MTBF_S = 1000 / 6.50 * DAY_S, 1000 / 2.34 * DAY_S
"""Lower and upper mean time between failures: Meta's two research clusters have 6.50 and 2.34 failures per thousand
node-days, according to arXiv 2410.21680; the figures were not checked in the paper's text.
"""
RESTART_S = 600.0
"""Assumed, unmeasured time from a failure to the next step: detect, replace the node, restart, load the checkpoint."""
CHECKPOINT_S = 600.0
"""Time between two checkpoints; the default of `platform.train`."""
_STATE_BYTES = 12
"""Checkpoint bytes per parameter: weight and two moments in fp32."""
_NODE_DEVICES = 8
"""Devices per node in the sources; a larger node counts as several."""
_LARGEST_EXPONENT = 600.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Interruptions:
    """Causes of lost time in a training, seconds."""

    node_mtbf_s: float | None = None
    """Mean time between failures of one node; None for the published values."""
    restart_s: float = RESTART_S
    checkpoint_s: float = CHECKPOINT_S
    """Training time between two checkpoints."""

    @property
    def words(self) -> str:
        """Text of the assumptions for the legend."""
        stated = self.node_mtbf_s is not None
        days = f"{(self.node_mtbf_s or NODE_MTBF_S) / DAY_S:.3g} days"
        source = "" if stated else f" ({_LEAST_MTBF_S / DAY_S:.0f} to {_MOST_MTBF_S / DAY_S:.0f}, --node-mtbf)"
        return (
            f"a node fails once in {days}{source}, a restart takes {self.restart_s / 60:.3g} min (--restart), a"
            f" checkpoint is made every {self.checkpoint_s / 60:.3g} min (--checkpoint-s)"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Elapsed:
    """Days of a training; the ends combine the step time's 80 % interval with the range of published failure rates."""

    days: float
    low_days: float
    high_days: float
    train_days: float
    """Days of steps that were not lost."""

    @property
    def goodput(self) -> float:
        """Share of the elapsed time spent on steps that were not lost."""
        return self.train_days / self.days

    def to_json(self) -> dict[str, float | None]:
        """Returns the fields of an answer; None for infinite days."""
        days = {
            "elapsed_days": self.days,
            "elapsed_days_low": self.low_days,
            "elapsed_days_high": self.high_days,
        }
        finite = {name: value if math.isfinite(value) else None for name, value in days.items()}
        return {**finite, "goodput": self.goodput}


def elapsed_s(
    steps_s: float, *, mtbf_s: float, checkpoint_every_s: float, checkpoint_s: float, restart_s: float
) -> float:
    """Returns the expected seconds of a training with `steps_s` seconds of steps, by the module's formula; infinity if
    a segment is unlikely ever to complete. A training shorter than one segment has no checkpoint.
    """
    if steps_s <= checkpoint_every_s:
        segment_s, stop_s = steps_s, 0.0
    else:
        segment_s, stop_s = checkpoint_every_s, checkpoint_s
    if math.isinf(mtbf_s):
        return steps_s * (1 + stop_s / segment_s)
    if (segment_s + stop_s + restart_s) / mtbf_s > _LARGEST_EXPONENT:
        return math.inf
    return mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((segment_s + stop_s) / mtbf_s) * steps_s / segment_s


def elapsed(
    planned: PredictedLayout, recipe: Recipe, cluster: ClusterSpec, tokens: float, interruptions: Interruptions
) -> Elapsed:
    """Returns the days to train `recipe` on `tokens` with the layout on the cluster.

    Training stops while a checkpoint is copied to host memory at the rate of the device's host link.
    """
    num_nodes = max(cluster.num_nodes, cluster.num_devices / _NODE_DEVICES)
    state_gb = _STATE_BYTES * recipe.trained_parameters / cluster.num_devices / 1e9
    train_s = planned.days(tokens) * DAY_S
    stated = interruptions.node_mtbf_s

    def days(step_s: float, node_mtbf_s: float) -> float:
        seconds = elapsed_s(
            train_s * step_s / planned.step_s,
            mtbf_s=(stated or node_mtbf_s) / num_nodes,
            checkpoint_every_s=interruptions.checkpoint_s,
            checkpoint_s=state_gb / cluster.device.host_gb_per_s,
            restart_s=interruptions.restart_s,
        )
        return seconds / DAY_S

    return Elapsed(
        days=days(planned.step_s, NODE_MTBF_S),
        low_days=days(planned.low_s, _MOST_MTBF_S),
        high_days=days(planned.high_s, _LEAST_MTBF_S),
        train_days=train_s / DAY_S,
    )
