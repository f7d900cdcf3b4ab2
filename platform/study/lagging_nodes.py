"""Nodes that lag behind the others of a cluster: by their matmul peaks, and by the figures of the trials that they ran,
held to what was believed of these.

A node is held to the median of the others, so that where most are slow none lags. Its matmul peak, measured in its
first trial, is measured once more before anything follows from it; a slow network or host shows in figures alone, of
several trials.
"""

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from platform.study.node_paces import slowest_by_node
from trainers.records.journal import Lagging, Peak
from trainers.records.measurement import TIMED, Measurement

SHARE = {"cuda": 0.10, "cpu": 0.40}
"""Share below the other nodes' median from which a node lags, by kind of device. Equal GPUs differ by 2 to 5 %; CPU
cores are shared with others."""
SIGHTINGS = {"cuda": 2, "cpu": 3}
"""Measurements of a node's matmul peak that must be slow one after another, by kind of device."""
KEPT = 12
"""Last figures of a node that count."""
MISTAKES = 0.01
"""Chance with which figures name any healthy node of the cluster."""


def by_peaks(peaks: Sequence[Peak], device_kind: str) -> tuple[dict[str, float], frozenset[str]]:
    """Returns by node whose matmul peak is by `SHARE` below the others' median, `SIGHTINGS` times in a row, how much of
    that it reaches; and the nodes of which one more measurement is to say whether they lag.
    """
    share, sightings = SHARE[device_kind], SIGHTINGS[device_kind]
    lagging, suspected = dict[str, float](), set[str]()
    for precision in dict.fromkeys(peak.precision for peak in peaks):
        figures = defaultdict[str, list[float]](list)
        for peak in peaks:
            if peak.precision == precision:
                for node, tflops in slowest_by_node(peak).items():
                    figures[node].append(tflops)
        for node, its in figures.items():
            others = [last[-1] for other, last in figures.items() if other != node]
            if not others or not (middle := statistics.median(others)) > 0:
                continue
            slow = [tflops < (1 - share) * middle for tflops in its[-sightings:]]
            if len(slow) == sightings and all(slow):
                lagging[node] = max(its[-sightings:]) / middle
            elif slow[-1]:
                suspected.add(node)
    return lagging, frozenset(suspected - lagging.keys())


class NodeFigures:
    """The figures of each node's trials, held to what was believed of them."""

    def __init__(self, believed: Mapping[str, Mapping[int, float]]) -> None:
        """Takes the predicted tokens/s by candidate and micro-batch. Where nothing is predicted, a point that ran on
        several sets of nodes is held to the middle of its figures: both at once would compare unlike distances.
        """
        self._believed = believed
        self._runs = defaultdict[tuple[str, int], dict[str, float]](dict)
        """By point: the last speed on each set of nodes."""
        self._of_node = defaultdict[str, deque[float]](lambda: deque(maxlen=KEPT))
        """By node: how far each of its trials is from what was believed, as a logarithm."""

    def add(self, key: str, measured: Iterable[Measurement]) -> None:
        """Adds what a trial of the candidate with this key measured."""
        distances, addresses = list[float](), tuple[str, ...]()
        for measurement in measured:
            speed = measurement.tokens_per_s
            if measurement.outcome not in TIMED or not speed or not math.isfinite(speed) or not measurement.addresses:
                continue
            addresses = tuple(sorted(set(measurement.addresses)))
            micro_batch, place = measurement.batch.micro_batch, " ".join(addresses)
            runs = self._runs[key, micro_batch]
            runs[place] = speed
            if self._believed:
                believed = self._believed.get(key, {}).get(micro_batch)
            else:
                believed = statistics.median(runs.values()) if len(runs) > 1 else None
            if believed:
                distances.append(math.log(speed / believed))
        if distances:
            for node in addresses:
                self._of_node[node].append(statistics.median(distances))

    def lagging(self, nodes: Collection[str], share: float) -> dict[str, float]:
        """Returns which of these nodes lag, with their speed over that of the others: their figures are slower than the
        others' by more than `share`, by the rank test of Mann and Whitney, to which it is all the same how far a stall
        is off.
        """
        slow: dict[str, float] = {}
        for node in nodes:
            its, others = self._of_node.get(node), [value for other, values in self._of_node.items() if other != node
                                                    for value in values]  # fmt: skip
            if not its or not others:
                continue
            lead = statistics.median(its) - statistics.median(others)
            # It is asked after each trial of a node.
            if lead < math.log(1 - share) and _chance(its, others, share) < MISTAKES / (KEPT * len(self._of_node)):
                slow[node] = math.exp(lead)
        return slow


def _chance(its: Iterable[float], others: Sequence[float], share: float) -> float:
    """Returns the chance of such logarithms of a node that is no more than `share` slower."""
    from scipy.stats import mannwhitneyu  # takes a second, which a search without a slow node need not pay

    test: Any = mannwhitneyu([value - math.log(1 - share) for value in its], others, alternative="less")
    return float(test.pvalue)


def sentence_of(lagging: Lagging) -> str:
    """Returns the sentence on a node that lags, for people."""
    if lagging.by == "peak":
        shown = f"its matrix products run at {lagging.pace:.0%} of the other nodes' speed, measured again"
    else:
        shown = f"its trials run at {lagging.pace:.0%} of what the same layouts reach on the other nodes"
    return f"Node {lagging.node} lags: {shown}. Further trials run on the others."
