"""The nodes of a search: those that trials are to avoid, since trials fail there or they lag, and those of a round."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.loop import policy
from platform.search.loop.jobs import TrialSettings
from platform.search.loop.lanes import Lanes
from platform.study.history import History
from platform.study.keys import key_of
from platform.study.lagging_nodes import SHARE, NodeFigures, by_peaks
from trainers.records.journal import Lagging
from trainers.records.measurement import Measurement


def nodes_of_round(trial: ConfirmationTrial, history: History) -> tuple[str, ...]:
    """Returns the addresses of the nodes of the round's other runs, for a comparable run; empty if unknown."""
    rounds = (start for start in reversed(history.trials) if start.micro_batches and start.repeat)
    same = (start for start in rounds if (start.recipe, start.repeat) == (trial.recipe, trial.repeat))
    return next((start.nodes for start in same), ()) if trial.rungs else ()


class NodeWatch:
    """The nodes on which trials fail in a session, and those that lag, in it or an earlier one."""

    def __init__(self, history: History, lanes: Lanes, settings: TrialSettings) -> None:
        self._lanes, self._device_kind = lanes, settings.cluster.device_kind
        self._streaks = Counter[str]()
        self.failing: frozenset[str] = frozenset()
        """Addresses of the nodes on which no further trial is to run, since trials fail there."""
        self._num_peaks = -1
        self._slow: dict[str, float] = {}
        self._suspected: frozenset[str] = frozenset()
        self._figures = NodeFigures(settings.predicted_speed)
        by_trial = defaultdict[str, list[Measurement]](list)
        for measurement in history.measurements:
            by_trial[measurement.trial_id].append(measurement)
        for measured in by_trial.values():
            self._figures.add(key_of(measured[0]), measured)

    def suspected(self, history: History) -> frozenset[str]:
        """Returns the addresses of the nodes whose matmul peaks are to be measured again."""
        if len(history.peaks) != self._num_peaks:
            self._num_peaks = len(history.peaks)
            self._slow, self._suspected = by_peaks(history.peaks, self._device_kind)
        return self._suspected - history.lagging.keys()

    def on_trial_end(
        self, end: policy.Ended, key: str, measured: Sequence[Measurement], history: History
    ) -> list[Lagging]:
        """Takes note of the end of a trial of the candidate with this key, and of what it `measured`; returns which
        nodes are found to lag now. None is where no other nodes hold a trial.
        """
        self.failing = policy.failing_nodes(self._streaks, end)
        self._figures.add(key, measured)
        self.suspected(history)
        addresses = {address for measurement in measured for address in measurement.addresses}
        of_figures = self._figures.lagging(addresses, SHARE[self._device_kind])
        candidates = [
            *(Lagging(node=node, pace=pace, by="peak") for node, pace in self._slow.items()),
            *(Lagging(node=node, pace=pace, by="figures") for node, pace in of_figures.items()
              if node not in self._slow),
        ]  # fmt: skip
        lagging, avoided = list[Lagging](), {*history.lagging, *self.failing}
        for lag in candidates:
            if lag.node not in history.lagging and self._lanes.count(avoid={*avoided, lag.node}):
                avoided.add(lag.node)
                lagging.append(lag)
        return lagging
