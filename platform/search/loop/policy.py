"""Decides what the end of a trial means: whether its layout is tried again, and whether the cluster is at fault. Pure.

How a trial can end, and what follows:

| kind | what is known | trials that follow |
|---|---|---|
| ran | the ladder came to its end, by memory, loss or time too | none is needed |
| failed, hung | a rank, or its watchdog, said what it was | none: the layout's own failure is a result |
| died | a process is gone and nobody says why | one more; after the second death the layout is `failed` |
| node lost | a node that the trial ran on is gone | three more: the layout had no part in it |
| unstarted | no worker ever spoke | any number: nothing of the layout ran |

The last three say that the cluster may be at fault, and where they come one after another it is: the session ends.
"""

import dataclasses
import enum
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from platform.study.history import History
from trainers.records.journal import TrialStart, TrialState
from trainers.records.measurement import Measurement, Outcome


class Kind(enum.StrEnum):
    """The ways in which a trial ends."""

    RAN = "ran"
    FAILED = "failed"
    HUNG = "hung"
    DIED = "died"
    NODE_LOST = "node lost"
    UNSTARTED = "unstarted"

    @property
    def unexplained(self) -> bool:
        """Whether the cause may lie outside the layout."""
        return self in (Kind.DIED, Kind.NODE_LOST, Kind.UNSTARTED)


class Next(enum.Enum):
    """The next step for the layout of a trial that ended."""

    SETTLED = "what was recorded stands"
    RETRY = "it gets another trial"
    GIVEN_UP = "it is recorded as failed"


RETRIES: dict[Kind, float] = {Kind.DIED: 1, Kind.NODE_LOST: 3, Kind.UNSTARTED: float("inf")}
"""Number of further trials that a layout, or a final run, gets in a session after an end of each kind; other kinds get
none.
"""
IN_A_ROW = 3
"""Number of consecutive unexplained ends, of at least two layouts or of trials that never ran, that blame the
cluster.
"""
WINDOW = 10
MOST_OF_WINDOW = 8
"""Number of bad ends among the last `WINDOW` trials that blame the cluster or what is installed on it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """The end of one trial of a session."""

    key: tuple[str, int]
    """The candidate's key and the number of its run."""
    kind: Kind
    node: str = ""
    """The node that it failed on, "" where unknown."""
    reason: str = ""


def ends_of(trials: Iterable[TrialStart], history: History) -> list[Ended]:
    """Returns how the trials ended that have an end in the journal."""
    ended = ((trial, history.trial_end(trial.trial_id)) for trial in trials)
    return [
        Ended(key=(end.key, trial.repeat), kind=Kind(end.fault or Kind.RAN), node=end.node, reason=end.reason)
        for trial, end in ended
        if end is not None
    ]


def kind_of(state: TrialState, outcome: Outcome | None, *, started: bool, node_lost: bool, measures: bool) -> Kind:
    """Returns the kind of a trial's end.

    `state` is what its processes report, `outcome` what ended its ladder (None for nothing), `started` whether a worker
    reported, `node_lost` whether one of its nodes is gone. A trial that `measures` nothing runs a gate's reference or a
    profile.
    """
    if not started:
        return Kind.UNSTARTED
    if outcome is Outcome.FAILED or outcome is Outcome.HUNG:
        return Kind(outcome.value)
    if state != "failed" or outcome is not None:
        return Kind.RAN
    return Kind.NODE_LOST if node_lost else Kind.DIED if measures else Kind.FAILED


def end_of(
    key: tuple[str, int],
    verdict: Measurement | None,
    *,
    state: TrialState,
    reason: str,
    started: bool,
    measures: bool,
    rank: int | None,
    nodes: Sequence[str],
    lost_nodes: Collection[str],
) -> Ended:
    """Returns the end of a trial from its ladder's `verdict` (None for none) and from what Tune and its processes
    report.

    The arguments are those of `kind_of`; the trial ran on `nodes`, by rank, of which `lost_nodes` no longer answer.
    """
    kind = kind_of(state, verdict and verdict.outcome, started=started, node_lost=bool(lost_nodes), measures=measures)
    if state == "failed" and verdict is not None:
        # A process that ends after the verdict is a consequence: the verdict's reason stays.
        reason, rank = verdict.reason, verdict.rank
    reason = reason or ("" if started else "its workers did not start")
    node = next(iter(lost_nodes), "") or (nodes[rank] if rank is not None and rank < len(nodes) else "")
    return Ended(key=key, kind=kind, node=node, reason=reason)


def follows(ends: Sequence[Ended]) -> Next:
    """Returns what follows for the layout of the last of a session's `ends`."""
    last = ends[-1]
    if last.kind not in RETRIES:
        return Next.SETTLED
    times = sum(end.key == last.key and end.kind is last.kind for end in ends)
    return Next.RETRY if times <= RETRIES[last.kind] else Next.GIVEN_UP


def fault(ends: Sequence[Ended]) -> str:
    """Returns why the cluster is at fault given a session's `ends` so far; "" where it is not.

    A layout that dies again and again is itself at fault: dead processes count only if two layouts had them.
    """
    row = list(itertools.takewhile(lambda end: end.kind.unexplained, reversed(ends)))
    is_general = len({end.key for end in row}) > 1 or all(end.kind is not Kind.DIED for end in row)
    if len(row) >= IN_A_ROW and is_general:
        kinds = {end.kind for end in row}
        ending = "did not start" if kinds == {Kind.UNSTARTED} else "ended without a message from their workers"
        return f"{len(row)} trials in a row {ending}{_nodes_text(row)}, the last one with: {row[0].reason}"
    window = ends[-WINDOW:]
    bad = [end for end in window if end.kind is not Kind.RAN]
    if len(bad) >= MOST_OF_WINDOW:
        rate = f"{len(bad)} of the last {len(window)} trials failed"
        return f"{rate}{_nodes_text(bad)}, the last one with: {bad[-1].reason}"
    return ""


def _nodes_text(bad: Sequence[Ended]) -> str:
    """Returns the node on which most of them failed, where one stands out."""
    commonest = Counter(end.node for end in bad if end.node).most_common(1)
    if not commonest or 2 * commonest[0][1] <= len(bad):
        return ""
    (node, count), total = commonest[0], len(bad)
    return f", {'all' if count == total else f'{count} of them'} on node {node}"
