"""A search over four hosts with a network of their own: two join late, one is slow, and one leaves for good."""

import re

import pytest

from benchmarks.hosts import RayHosts, hosts
from platform.cluster.providers import STATED
from tests import needs
from tests.faults.searching import QUICK, Searching, gone, nothing_left, on_a_fifth_of_a_core
from tests.whole_searches.head import short_folder
from tests.whole_searches.session import write_space
from tests.whole_searches.studies import ANSWERED, all_ran
from trainers.records.journal import Measured, Peak, RungStart, TrialEnd

pytestmark = [pytest.mark.search, pytest.mark.heavy]


def test_late_slow_and_lost_nodes_cost_no_measurement() -> None:
    with needs.namespaces(), short_folder() as folder, hosts(4) as created:
        cluster = RayHosts(created, folder)
        axes = {"engine": ("ddp",), "grad_sync": ("last", "every")}
        space = write_space(folder / "four.py", micro_batches=(1, 2), global_batch=8, axes=axes, num_workers=4)
        options = ("--steps=300", "--searcher=sweep", "--exclude-slow")
        cluster.start(0)
        cluster.start(1)
        with Searching(cluster, str(space), *options, name="four", environment={**QUICK, STATED: "4"}) as search:
            waits = r"Waiting for 4 nodes that LAYOUT_SEARCH_NODES states: 2 of 4 nodes are there"
            search.wait_for(lambda: re.search(waits, search.output))
            cluster.start(3)
            with on_a_fifth_of_a_core(created[3]):
                cluster.start(2)
                search.wait_for(lambda: search.of(Peak))
                assert re.search(rf"^Left out: .*\({created[3].address}\)", search.output, re.MULTILINE), search.output
                # Four workers fit on two of the three hosts that are left.
                used = set(search.of(Peak)[0].nodes)
                assert created[3].address not in used
                search.wait_for(lambda: len(search.of(RungStart)) > 1)
                before = search.of(Measured)
                leaves = next(host for host in created[1:3] if host.address in used)
                leaves.kill()
                gone(cluster, 3)
                assert search.end() in ANSWERED, search.output  # four workers on few cores may leave two layouts tied
                nothing_left(cluster)
        assert "4 nodes came after" in search.output
        assert search.of(Measured)[: len(before)] == before
        all_ran(search.lines, (1, 2), num_layouts=2)
        assert len(search.of(TrialEnd)) >= 3  # the one whose node left ran again
