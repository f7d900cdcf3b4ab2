"""Hosts with a network of their own: one of them has other software, is slow, is lost, is lost and returns, or is cut
off.
"""

import contextlib
import re
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.hosts import RayHosts, hosts
from platform.common.errors import NOT_RESOLVED
from tests import needs
from tests.faults.searching import QUICK, Searching, gone, nothing_left, on_a_fifth_of_a_core
from tests.whole_searches.head import short_folder
from tests.whole_searches.session import write_space
from tests.whole_searches.studies import RAN, all_ran
from trainers.records.journal import Measured, Peak, RungStart, TrialEnd
from trainers.records.measurement import Outcome

pytestmark = pytest.mark.search
LAYOUTS = {"engine": ("ddp",), "grad_sync": ("last", "every")}
_NOT_BEGUN = ("failed", "unstarted")
LONG_RUNGS = ("--steps=300", "--searcher=sweep")


@pytest.fixture
def cluster() -> Iterator[RayHosts]:
    """Yields a head on the first of two hosts; the second has nothing yet."""
    with needs.namespaces(), short_folder() as folder, hosts(2) as created:
        up = RayHosts(created, folder)
        up.start(0)
        yield up


def _two_layouts(cluster: RayHosts, **fields: float) -> str:
    """Returns a space of two layouts of two rungs."""
    return str(write_space(cluster.folder / "two.py", micro_batches=(1, 2), global_batch=8, axes=LAYOUTS, **fields))


@contextlib.contextmanager
def _in_the_second_rung(cluster: RayHosts, name: str, **fields: float) -> Generator[Searching]:
    """Yields a search of two layouts over both hosts, in its second rung or beyond."""
    cluster.start(1)
    with Searching(cluster, _two_layouts(cluster, **fields), *LONG_RUNGS, name=name, environment=QUICK) as search:
        search.wait_for(lambda: len(search.of(RungStart)) > 1)
        yield search


def _all_of_it_once(search: Searching, before: Sequence[Measured]) -> None:
    """Checks that what was measured `before` is there, that none of it was run again, and that both layouts are
    whole.
    """
    assert search.of(Measured)[: len(before)] == before
    all_ran(search.lines, (1, 2), num_layouts=2)


def _plant(folder: Path) -> str:
    """Returns a folder that, on a path, makes transformers look like version 9.9.9."""
    planted = folder / "planted" / "transformers-9.9.9.dist-info"
    planted.mkdir(parents=True)
    (planted / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 9.9.9\n")
    return str(planted.parent)


@pytest.mark.heavy
def test_a_node_of_other_versions_is_refused(cluster: RayHosts) -> None:
    space, second = _two_layouts(cluster), cluster.hosts[1]
    cluster.start(1, environment={"PYTHONPATH": _plant(cluster.folder)})
    with Searching(cluster, space, name="unequal") as search:
        assert search.end() == 3
    assert f"cluster fault: node {second.address} has transformers 9.9.9" in search.output
    assert not search.journal.exists()  # nothing was begun, and no study is left


@pytest.mark.heavy
def test_a_link_cut_for_20_s_costs_a_trial_at_most_and_nothing_measured(cluster: RayHosts) -> None:
    space = str(write_space(cluster.folder / "one.py", micro_batches=(1, 2), global_batch=8))
    second = cluster.hosts[1]
    cluster.start(1)
    with Searching(cluster, space, *LONG_RUNGS, name="cut") as search:
        search.wait_for(lambda: search.of(RungStart))
        second.cut()
        time.sleep(20)
        second.mend()
        assert search.end() == 0, search.output
    nothing_left(cluster)
    # Whether Ray's own connection outlives the cut is the kernel's to decide: where it does not, the layout runs again.
    assert [end.state for end in search.of(TrialEnd)][:2] in (["done"], ["done", "done"], ["interrupted", "done"])
    points = [line.measurement.batch.micro_batch for line in search.of(Measured) if not line.measurement.repeat]
    assert points == [1, 2]
    assert {line.measurement.outcome for line in search.of(Measured)} <= RAN


@pytest.mark.heavy
def test_a_node_that_is_lost_and_returns_is_used_again(cluster: RayHosts) -> None:
    second = cluster.hosts[1]
    with _in_the_second_rung(cluster, "back") as search:
        before = search.of(Measured)
        second.kill()
        gone(cluster, 1)
        cluster.start(1)
        assert search.end() == 0, search.output
    nothing_left(cluster)
    _all_of_it_once(search, before)
    assert len(search.of(TrialEnd)) >= 3  # the one whose node was lost was run again


@pytest.mark.heavy
def test_a_node_that_does_not_return_ends_the_session_and_is_named(cluster: RayHosts) -> None:
    second = cluster.hosts[1]
    with _in_the_second_rung(cluster, "gone") as search:
        second.kill()
        assert search.end() == 3, search.output
        before = search.of(Measured)
    nothing_left(cluster)
    assert "cluster fault: 3 trials in a row ended without a message from their workers" in search.output
    assert f"on node {second.address}" in search.output
    assert "go on with" in search.output and "Traceback" not in search.output
    ends = [(end.state, end.fault) for end in search.of(TrialEnd)]
    assert ("interrupted", "node lost") in ends and set(ends) <= {
        ("interrupted", "node lost"),
        ("done", ""),
        _NOT_BEGUN,
    }
    gone(cluster, 1)
    cluster.start(1)
    with Searching(cluster, "--resume", "gone", name="gone") as search:
        assert search.end() == 0, search.output
    _all_of_it_once(search, before)


@pytest.mark.heavy
def test_preflight_leaves_out_a_slow_node(cluster: RayHosts) -> None:
    second = cluster.hosts[1]
    cluster.start(1)
    options = ("--max-trials=1", "--exclude-slow")
    with (
        on_a_fifth_of_a_core(second),
        Searching(cluster, _two_layouts(cluster), *options, name="slow") as search,
    ):
        assert search.end() == NOT_RESOLVED, f"one of two layouts is no comparison: {search.output}"
    shown = rf"^Left out: device \d on node \d \({second.address}\): (\w+ products|copies) at .* below the median of "
    assert re.search(shown, search.output, re.MULTILINE), search.output
    assert {line.measurement.outcome for line in search.of(Measured)} <= RAN
    assert [set(peak.nodes) for peak in search.of(Peak)] == [{cluster.hosts[0].address}]


@pytest.mark.heavy
def test_a_link_that_stays_cut_ends_the_session_and_blames_no_layout(cluster: RayHosts) -> None:
    """Checks that the layout is not blamed although the watchdog notices the cut before Ray does: a rank that waits for
    a rank of another host has not hung.
    """
    with _in_the_second_rung(cluster, "lost", hang_floor_s=20.0) as search:
        cluster.hosts[1].cut()
        assert search.end() == 3, search.output
    nothing_left(cluster)
    ends = [(end.state, end.fault) for end in search.of(TrialEnd)]
    assert ("interrupted", "node lost") in ends and set(ends) <= {
        ("interrupted", "node lost"),
        ("done", ""),
        _NOT_BEGUN,
    }
    assert f"on node {cluster.hosts[1].address}" in search.output
    assert "go on with" in search.output and "Traceback" not in search.output
    assert search.of(Measured)[0].measurement.outcome is Outcome.OK
    assert {line.measurement.outcome for line in search.of(Measured)} <= RAN
