"""The meaning of a trial's end, as a table: kinds of ends in order, and what follows."""

import pytest

from platform.search.loop.policy import IN_A_ROW, MOST_OF_WINDOW, WINDOW, Ended, Kind, Next, fault, follows, kind_of
from trainers.records.journal import TrialState
from trainers.records.measurement import Outcome

KINDS = {
    "r": Kind.RAN,
    "f": Kind.FAILED,
    "h": Kind.HUNG,
    "d": Kind.DIED,
    "n": Kind.NODE_LOST,
    "u": Kind.UNSTARTED,
    "s": Kind.STARVED,
}


def ends(text: str, node: str = "") -> list[Ended]:
    """Returns ends from words of the layout's letter, the kind's and the place's if any, such as "ad bd1 ar"."""
    return [
        Ended(key=(word[0], 0), kind=KINDS[word[1]], node=node, reason=f"no {n}", placed=tuple(word[2:]))
        for n, word in enumerate(text.split())
    ]


@pytest.mark.parametrize(
    ("state", "outcome", "started", "lost", "measures", "kind"),
    [
        ("done", None, True, False, True, Kind.RAN),
        ("interrupted", None, True, False, True, Kind.RAN),
        ("done", Outcome.OOM, True, False, True, Kind.RAN),
        ("failed", Outcome.OOM, True, False, True, Kind.RAN),
        ("failed", Outcome.DIVERGED, True, True, True, Kind.RAN),
        ("failed", Outcome.FAILED, True, False, True, Kind.FAILED),
        ("done", Outcome.HUNG, True, False, True, Kind.HUNG),
        ("failed", Outcome.HUNG, True, True, True, Kind.HUNG),
        ("failed", None, True, False, True, Kind.DIED),
        ("failed", None, True, True, True, Kind.NODE_LOST),
        ("failed", None, True, False, False, Kind.FAILED),
        ("failed", None, True, True, False, Kind.NODE_LOST),
        ("failed", None, False, False, True, Kind.UNSTARTED),
        ("failed", None, False, True, True, Kind.UNSTARTED),
    ],
)
def test_the_kind_of_an_end(
    state: TrialState, outcome: Outcome | None, started: bool, lost: bool, measures: bool, kind: Kind
) -> None:
    assert kind_of(state, outcome, started=started, node_lost=lost, measures=measures) is kind


def test_a_verdict_that_was_recorded_stands_where_the_host_s_memory_ran_out_beside_others() -> None:
    for outcome, kind in ((None, Kind.CROWDED), (Outcome.OOM, Kind.RAN), (Outcome.HUNG, Kind.HUNG)):
        ended = kind_of("failed", outcome, started=True, node_lost=False, measures=True, is_crowded=True)
        assert ended is kind


def test_memory_that_a_process_outside_the_search_holds_is_none_of_the_layout_s() -> None:
    for outcome, kind in ((None, Kind.STARVED), (Outcome.OOM, Kind.RAN)):
        for started in (True, False):
            ended = kind_of("failed", outcome, started=started, node_lost=False, measures=True, is_starved=True)
            assert ended is kind or not started
    sentence = fault(ends("as as as"))
    assert sentence.startswith("3 trials in a row lost their host's memory to a process outside the search, the last")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("as as as", Next.RETRY),
        ("as as as br as", Next.GIVEN_UP),
        ("ar", Next.SETTLED),
        ("af", Next.SETTLED),
        ("ah", Next.SETTLED),
        ("ad", Next.RETRY),
        ("ad ad", Next.GIVEN_UP),
        ("ad br ad", Next.GIVEN_UP),
        ("ad bd", Next.RETRY),
        ("ad an ad", Next.GIVEN_UP),
        ("ad an", Next.RETRY),
        ("an an an", Next.RETRY),
        ("an an an br an", Next.GIVEN_UP),
        ("au au au au au au", Next.RETRY),
        ("ad ad ar", Next.SETTLED),
        ("ad1 ad1", Next.RETRY),
        ("ad1 ad2", Next.GIVEN_UP),
        ("ad1 ad1 ad2", Next.GIVEN_UP),
        ("ad1 ad1 ad1", Next.GIVEN_UP),
        ("ad1 ad1 bd1 bd1", Next.RETRY),
        ("an1 an1 an1 an1", Next.GIVEN_UP),
    ],
)
def test_each_kind_has_a_budget_of_its_own(text: str, expected: Next) -> None:
    assert follows(ends(text)) is expected


@pytest.mark.parametrize(
    ("text", "blamed"),
    [
        ("", False),
        ("ad ad bd", True),
        ("ad bd", False),
        ("ad ad br cd", False),
        ("ar ad bh ad", False),
        ("ad ad", False),
        ("ad ad ad ad", False),
        ("au au au", True),
        ("au au", False),
        ("an an an", True),
        ("an ad an", False),
        ("an bd cu", True),
        ("ad bd ar", False),
        ("af bf cf df ef ff gf", False),
        ("af bf cf df ef ff gf hf", True),
        ("ar br cf df eh ff gf hf if jh", True),
        ("ar br cr df eh ff gf hf if jh", False),
        ("af bf cf df ef ff gf hf ir jr kr", False),
    ],
)
def test_when_the_cluster_is_at_fault(text: str, blamed: bool) -> None:
    assert bool(fault(ends(text))) == blamed


def test_the_limits_are_those_of_the_table() -> None:
    assert (IN_A_ROW, MOST_OF_WINDOW, WINDOW) == (3, 8, 10)


def test_it_says_which_node() -> None:
    same_node, other = ends("ad bd cd", "10.0.0.7"), ends("ad bd cd", "10.0.0.8")
    word = "ended without a message from their workers"
    assert fault(same_node) == f"3 trials in a row {word}, all on node 10.0.0.7, the last one with: no 2"
    assert (
        fault([*same_node[:2], other[2]])
        == f"3 trials in a row {word}, 2 of them on node 10.0.0.7, the last one with: no 2"
    )
    assert "node" not in fault([same_node[0], other[1], *ends("cd")]), "no node stands out"
    assert fault(ends("au au au")) == "3 trials in a row did not start, the last one with: no 2"
    rate = fault(ends("af bf cf df ef ff gf hf", "10.0.0.7"))
    assert rate == "8 of the last 8 trials failed, all on node 10.0.0.7, the last one with: no 7"
