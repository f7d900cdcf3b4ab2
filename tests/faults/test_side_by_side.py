"""Trials side by side on hosts with a network of their own: each on its own, and what becomes of them when a host is
lost, joins late, or is missing when the study is resumed.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.hosts import RayHosts, hosts
from platform.study.study import read
from tests import needs
from tests.faults.searching import QUICK, Searching, gone, nothing_left, on_a_fifth_of_a_core
from tests.whole_searches.head import short_folder
from tests.whole_searches.session import write_space
from tests.whole_searches.studies import ANSWERED, RAN, all_ran, run_twice
from trainers.records.journal import Lagging, Measured, Planned, RungStart, TrialEnd, TrialStart

pytestmark = pytest.mark.search
IN_ORDER = "--searcher=sweep"


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[RayHosts]:
    """Yields hosts, of which two have a node of a cluster by now."""
    with needs.namespaces(), short_folder() as folder, hosts(request.param) as created:
        up = RayHosts(created, folder)
        up.start(0)
        up.start(1)
        yield up


def _space(cluster: RayHosts, num_layouts: int, **fields: Any) -> str:
    """Returns a space of layouts for one worker, of two rungs of which the second is much faster."""
    axes = {"engine": ("ddp",), "bucket_mib": tuple(range(1, num_layouts + 1))}
    values = {"micro_batches": (1, 8), "global_batch": 8, "axes": axes, "num_workers": 1}
    return str(write_space(cluster.folder / "lanes.py", **{**values, **fields}))


def _points(search: Searching) -> Counter[str]:
    """Returns the ids of what the search itself measured."""
    return Counter(line.measurement.id for line in search.of(Measured) if line.measurement.outcome in RAN
                   and not line.measurement.repeat)  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_two_trials_have_a_host_each_and_each_figure_says_who_ran_beside_it(cluster: RayHosts) -> None:
    with Searching(cluster, _space(cluster, 2, micro_batches=(8,)), IN_ORDER, name="two") as search:
        search.wait_for(lambda: len(search.of(TrialEnd)) > 1)
    assert "Up to 2 trials run side by side, each on 1 whole node" in search.output
    first, second = search.of(TrialStart)[:2]
    assert second.beside == (first.trial_id,) and set(first.nodes).isdisjoint(second.nodes)
    by_trial = {line.measurement.trial_id: line.measurement for line in search.of(Measured)}
    for start in (first, second):
        assert by_trial[start.trial_id].addresses == start.nodes
    assert {end.beside for end in search.of(TrialEnd)[:2]} == {(first.trial_id,), (second.trial_id,)}


@pytest.mark.heavy
@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_the_same_is_measured_and_wins_side_by_side_as_one_after_another(cluster: RayHosts) -> None:
    cluster.start(2)
    space, layouts, winners = _space(cluster, 4), list[set[str]](), list[int]()
    for mode in ("auto", "off"):
        with Searching(cluster, space, IN_ORDER, f"--side-by-side={mode}", name=mode, environment=QUICK) as search:
            search.wait_for(lambda search=search: len(search.of(TrialEnd)) == 4)
            most = max(len(start.beside) for start in search.of(TrialStart))
            assert most == (2 if mode == "auto" else 0)
            measured = [line.measurement for line in search.of(Measured) if line.measurement.outcome in RAN]
        all_ran(search.lines, (1, 8), num_layouts=4)
        layouts.append({measurement.layout.id for measurement in measured})
        winners.append(max(measured, key=lambda measurement: measurement.tokens_per_s or 0.0).batch.micro_batch)
    assert layouts[0] == layouts[1] and winners == [8, 8]


@pytest.mark.heavy
@pytest.mark.parametrize("cluster", [4], indirect=True)
def test_a_lost_host_a_late_one_and_a_killed_driver_cost_no_measurement(cluster: RayHosts) -> None:
    cluster.start(2)
    options = ("--steps=200", IN_ORDER)
    addresses = [host.address for host in cluster.hosts]
    with Searching(cluster, _space(cluster, 9), *options, name="hurt", environment=QUICK) as search:
        search.wait_for(lambda: {start.nodes for start in search.of(TrialStart)} == {(a,) for a in addresses[:3]})
        lost = next(start.trial_id for start in search.of(TrialStart) if start.nodes == (addresses[2],))
        search.wait_for(lambda: any(line.trial_id == lost for line in search.of(RungStart)))
        cluster.hosts[2].kill()
        gone(cluster, 2)
        search.wait_for(lambda: any(end.fault for end in search.of(TrialEnd)))
        cluster.start(3)
        search.wait_for(lambda: any(start.nodes == (addresses[3],) for start in search.of(TrialStart)))
        search.wait_for(lambda: len(search.of(TrialStart)) - len(search.of(TrialEnd)) == 3)
        search.process.kill()
        search.process.wait()
    assert f"Node {addresses[3]} joined: further trials may run there." in search.output
    faults = [(end.trial_id, end.fault, end.node) for end in search.of(TrialEnd) if end.fault]
    assert faults == [(lost, "node lost", addresses[2])]
    nothing_left(cluster)
    keys = {f"{line.recipe}-{line.layout.id}" for line in search.of(Planned)[0].layouts}
    cluster.hosts[3].kill()
    gone(cluster, 2)
    with Searching(cluster, "--resume", "hurt", name="hurt", environment=QUICK) as search:
        search.wait_for(lambda: {end.key for end in search.of(TrialEnd) if end.state == "done"} == keys)
    all_ran(search.lines, (1, 8), num_layouts=9)
    assert set(_points(search).values()) == {1} and run_twice(search.lines) == []
    assert "Up to 2 trials run side by side" in search.output


@pytest.mark.heavy
def test_trials_share_a_host_where_that_is_asked_for() -> None:
    with needs.namespaces(), short_folder() as folder, hosts(1) as created:
        cluster = RayHosts(created, folder)
        cluster.start(0, num_cpus=3)
        space = _space(cluster, 3, micro_batches=(8,))
        with Searching(cluster, space, IN_ORDER, "--side-by-side=on", name="shared") as search:
            search.wait_for(lambda: len(search.of(TrialEnd)) > 2)
        assert "Up to 2 trials run side by side, 2 of them share each node" in search.output
        first, second = search.of(TrialStart)[:2]
        assert second.beside == (first.trial_id,) and first.nodes == second.nodes == (created[0].address,)
        assert any(line.measurement.beside for line in search.of(Measured))
        nothing_left(cluster)


@pytest.mark.heavy
@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_two_numbers_of_workers_are_searched_at_the_same_time(cluster: RayHosts) -> None:
    cluster.start(2)
    options = (IN_ORDER, "--gpus=1,2", "--repeats=0", "--max-trials=2")
    space = _space(cluster, 2, micro_batches=(4,))
    with Searching(cluster, space, *options, name="scale", environment=QUICK) as search:
        assert search.end() in ANSWERED, search.output  # a small model's speeds scatter
    first, second = (read(cluster.folder / "studies" / f"scale-{count}gpu")[0] for count in (1, 2))
    nodes = {f"scale-1gpu:{start.trial_id}": set(start.nodes) for start in first.trials}
    beside = [(start, other) for start in second.trials for other in start.beside if other in nodes]
    ends = [end for start in second.trials if (end := second.trial_end(start.trial_id))]
    assert beside or any(other in nodes for end in ends for other in end.beside)
    assert all(nodes[other].isdisjoint(start.nodes) and len(start.nodes) == 2 for start, other in beside)
    figures = [m.beside for history in (first, second) for m in history.measurements if m.outcome in RAN]
    assert any(":" in other for others in figures for other in others), "figures say it too"
    nothing_left(cluster)


@pytest.mark.heavy
@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_a_host_that_lags_is_named_and_nothing_further_runs_there(cluster: RayHosts) -> None:
    """Checks a host whose processor is throttled, and multiplies by instructions of long ago."""
    cluster.start(2, environment={"MKL_CBWR": "COMPATIBLE"})
    slow = cluster.hosts[2]
    space = _space(cluster, 30, micro_batches=(8,))
    with (
        on_a_fifth_of_a_core(slow),
        Searching(cluster, space, IN_ORDER, "--repeats=0", name="lagging", environment=QUICK) as search,
    ):
        search.wait_for(lambda: search.of(Lagging))
        begun = len(search.of(TrialStart))
        search.wait_for(lambda: len(search.of(TrialEnd)) > begun + 3)
    (lag,) = search.of(Lagging)
    assert lag.node == slow.address and lag.pace < 0.6
    assert f"Node {slow.address} lags: " in search.output
    assert not any(slow.address in start.nodes for start in search.of(TrialStart)[begun:])
