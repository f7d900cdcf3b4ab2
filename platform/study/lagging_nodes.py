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

from platform.study.node_paces import slowest_by_node
from trainers.records.journal import Lagging, Peak
from trainers.records.measurement import TIMED, Measurement

SHARE = {"cuda": 0.10, "cpu": 0.40}
"""Share below the other nodes' median from which a node lags, by kind of device. Equal GPUs differ by 2 to 5 %; CPU
cores are shared with others."""
SIGHTINGS = {"cuda": 2, "cpu": 3}
"""Measurements of a node's matmul peak that must be slow one after another, by kind of device."""
LEAST_TRIALS = 3
"""Trials of a node before its figures say anything of it."""
KEPT = 12
"""Last figures of a node that count."""
MISTAKES = 0.01
"""Chance with which figures name any healthy node of the cluster."""
LEAST_NOISE = 0.01
"""Least deviation of a figure's logarithm: what a point differs by from run to run on a quiet machine."""
MEDIAN_NOISE = math.sqrt(math.pi / 2)
"""Deviation of a median over that of a mean of as many values."""


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
    """How the figures of each node's trials compare with what was believed of them."""

    def __init__(self, believed: Mapping[str, Mapping[int, float]]) -> None:
        """Takes the predicted tokens/s by candidate and micro-batch; empty where nothing is predicted. A point that ran
        on other nodes too is held to its figures there instead.
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
            elsewhere = [other for where, other in runs.items() if where != place]
            believed = statistics.median(elsewhere) if elsewhere else self._believed.get(key, {}).get(micro_batch)
            runs[place] = speed
            if believed:
                distances.append(math.log(speed / believed))
        if distances:
            for node in addresses:
                self._of_node[node].append(statistics.median(distances))

    def lagging(self, nodes: Collection[str], share: float) -> dict[str, float]:
        """Returns which of these nodes lag, with their speed over that of the others: they are slower by at least
        `share` and by more than the interval of a median of so few figures.
        """
        medians = {node: statistics.median(values) for node, values in self._of_node.items()}
        slow: dict[str, float] = {}
        for node in nodes:
            its = self._of_node.get(node, ())
            others = [median for other, median in medians.items() if other != node]
            if len(its) < LEAST_TRIALS or not others:
                continue
            lead = medians[node] - statistics.median(others)
            if lead <= math.log(1 - share) and lead < -self._interval(medians, len(its)):
                slow[node] = math.exp(lead)
        return slow

    def _interval(self, medians: Mapping[str, float], count: int) -> float:
        off = [abs(value - medians[node]) for node, values in self._of_node.items() for value in values]
        noise = max(LEAST_NOISE, statistics.median(off) / statistics.NormalDist().inv_cdf(0.75))
        quantile = statistics.NormalDist().inv_cdf(1 - MISTAKES / len(medians))
        return quantile * MEDIAN_NOISE * noise / math.sqrt(count)


def sentence_of(lagging: Lagging) -> str:
    """Returns the sentence on a node that lags, for people."""
    if lagging.by == "peak":
        shown = f"its matrix products run at {lagging.pace:.0%} of the other nodes' speed, measured again"
    else:
        shown = f"its trials run at {lagging.pace:.0%} of what the same layouts reach on the other nodes"
    return f"Node {lagging.node} lags: {shown}. Further trials run on the others."
