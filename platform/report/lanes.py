"""The lanes of a study: which trial had which nodes when, where trials ran side by side."""

import dataclasses
import datetime

from platform.common.text import duration, figure, plural
from platform.study.history import History


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LaneSpan:
    """The time of a trial on one of its nodes."""

    trial_id: str
    node: str
    """The node's address."""
    begin_s: float
    end_s: float
    """Seconds since the study's first trial."""
    is_final: bool
    is_lost: bool
    """Whether it ended without a message from its workers, or is not over."""


def lane_spans(history: History) -> list[LaneSpan]:
    """Returns the spans of all trials that were given nodes, in the order of their starts."""
    placed = [start for start in history.trials if start.nodes]
    if not placed:
        return []
    zero = datetime.datetime.fromisoformat(placed[0].at)
    spans: list[LaneSpan] = []
    for start in placed:
        end = history.trial_end(start.trial_id)
        begin_s = (datetime.datetime.fromisoformat(start.at) - zero).total_seconds()
        last_s = (datetime.datetime.fromisoformat(history.last_at) - zero).total_seconds()
        spans += [
            LaneSpan(
                trial_id=start.trial_id,
                node=node,
                begin_s=begin_s,
                end_s=begin_s + end.wall_s if end else max(begin_s, last_s),
                is_final=start.is_final,
                is_lost=end is None or bool(end.fault),
            )
            for node in start.nodes
        ]
    return spans


def lanes_words(history: History) -> str:
    """Returns a sentence on trials that ran side by side: how many, on how many nodes, and beside what figures were
    measured; "" where none did.
    """
    spans = lane_spans(history)
    most = max((len(start.beside) + 1 for start in history.trials), default=0)
    if most < 2:
        return ""
    nodes = {span.node for span in spans}
    busy_s = sum(span.end_s - span.begin_s for span in spans)
    whole_s = max(span.end_s for span in spans) - min(span.begin_s for span in spans)
    shared = _num_on_shared_nodes(history)
    beside = f"{plural(shared, 'trial')} had others on the same node" if shared else "none had another on its own nodes"
    return (
        f"Up to {most} trials ran side by side on {plural(len(nodes), 'node')}, {beside}: {duration(whole_s)} of time,"
        f" of which each node was used for {figure(100 * busy_s / (whole_s * len(nodes) or 1))} % on average."
    )


def _num_on_shared_nodes(history: History) -> int:
    nodes = {start.trial_id: set(start.nodes) for start in history.trials}
    ends = (history.trial_end(start.trial_id) for start in history.trials)
    return sum(any(nodes[end.trial_id] & nodes.get(other, set()) for other in end.beside) for end in ends if end)
