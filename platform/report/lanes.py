"""The lanes of a study whose trials ran side by side: nodes and times of each trial."""

import dataclasses
import datetime
import itertools
from collections.abc import Sequence

from platform.common.text import duration, figure, plural
from platform.study.history import History
from platform.study.lagging_nodes import sentence_of

LOST = frozenset({"died", "node lost", "unstarted", "starved"})
"""Faults with which a trial ends without a message from its workers."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LaneSpan:
    """The time of a trial on one of its nodes."""

    trial_id: str
    node: str
    begin_s: float
    end_s: float
    """`begin_s` and `end_s` are seconds since the study's first trial."""
    session: int
    is_final: bool
    is_lost: bool
    """Whether the trial ended without a message from its workers, or has not ended."""


def lane_spans(history: History) -> list[LaneSpan]:
    """Returns the spans of all trials that were assigned nodes, in the order of their starts."""
    placed = [start for start in history.trials if start.nodes]
    if not placed:
        return []
    zero = datetime.datetime.fromisoformat(placed[0].at)
    spans: list[LaneSpan] = []
    for start in placed:
        end = history.trial_end(start.trial_id)
        begin_s = (datetime.datetime.fromisoformat(start.at) - zero).total_seconds()
        spans += [
            LaneSpan(
                trial_id=start.trial_id,
                node=node,
                begin_s=begin_s,
                end_s=begin_s + history.lasted_s(start),
                session=history.session_of(start),
                is_final=start.is_final,
                is_lost=end is None or end.fault in LOST,
            )
            for node in start.nodes
        ]
    return spans


def lanes_words(history: History) -> str:
    """Returns a sentence on trials that ran side by side, on shared nodes and on the nodes' use; "" if none did."""
    spans = lane_spans(history)
    ids = {start.trial_id for start in history.trials}
    most = max((len(ids.intersection(start.beside)) + 1 for start in history.trials), default=0)
    has_others = any(":" in other for start in history.trials for other in start.beside)
    if most < 2 and not has_others:
        return ""
    nodes = {span.node for span in spans}
    whole_s = busy_s = of_nodes_s = 0.0
    for _, of_session in itertools.groupby(spans, lambda span: span.session):
        session = list(of_session)
        lasted_s = max(span.end_s for span in session) - min(span.begin_s for span in session)
        its_nodes = {span.node for span in session}
        whole_s += lasted_s
        of_nodes_s += lasted_s * len(its_nodes)
        busy_s += sum(_covered_s([span for span in session if span.node == node]) for node in its_nodes)
    shared = _num_on_shared_nodes(history)
    beside = f"{plural(shared, 'trial')} had others on the same node" if shared else "none had another on its own nodes"
    if has_others:
        beside += ", and trials of other searches, which are neither counted nor drawn, ran beside them"
    return (
        f"Up to {plural(most, 'trial')} ran side by side on {plural(len(nodes), 'node')}, {beside}:"
        f" {duration(whole_s)} of time, of which"
        f" each node was used for {figure(100 * busy_s / (of_nodes_s or 1))} % on average."
    )


def lagging_words(history: History) -> str:
    """Returns sentences on nodes that were left out because they lag; "" for none."""
    return " ".join(map(sentence_of, history.lagging.values()))


def _covered_s(spans: Sequence[LaneSpan]) -> float:
    """Returns the seconds in which at least one of a node's spans runs; trials may share a node."""
    covered_s, until_s = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.begin_s):
        covered_s += max(0.0, span.end_s - max(span.begin_s, until_s))
        until_s = max(until_s, span.end_s)
    return covered_s


def _num_on_shared_nodes(history: History) -> int:
    nodes = {start.trial_id: set(start.nodes) for start in history.trials}
    ends = (history.trial_end(start.trial_id) for start in history.trials)
    return sum(any(nodes[end.trial_id] & nodes.get(other, set()) for other in end.beside) for end in ends if end)
