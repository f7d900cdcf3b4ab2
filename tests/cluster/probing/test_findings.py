"""The findings of a probe, without running one."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import search_spaces
from benchmarks.slow_network_space import space as slow_network_space
from platform.cluster.nodes import ClusterHandle
from platform.cluster.probing import probe_store
from platform.cluster.probing.findings import laggards
from platform.cluster.probing.probe_tables import show, to_object
from platform.common.errors import InputError
from platform.cost_model.hardware import from_cluster
from platform.cost_model.ordering import known_columns, likely_best_first
from platform.cost_model.predict import predict
from platform.cost_model.probed_cluster import with_probe
from platform.plan.__main__ import main
from tests.cluster.probing.samples import H200S, collectives, device, probe
from trainers.records.probe import Collective, DeviceFigures, Probe, Product
from trainers.spec.cluster import Cluster
from trainers.spec.codec import from_json, to_json
from trainers.spec.layout import Layout

PLACE = ClusterHandle(
    cluster=H200S, cpus_per_worker=1, driver_ip="10.0.0.1", software={"driver": "580", "torch": "2.13.0"}
)


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    # nccl-tests, doc/PERFORMANCE.md: an all-reduce over n ranks passes 2 (n-1)/n of its bytes over each link.
    reduced = Collective(scope="node", nodes=(0,), ranks=8, operation="all_reduce", num_bytes=8 * 10**9, seconds=0.1)
    assert reduced.algorithm_gb_per_s == pytest.approx(80)
    assert reduced.bus_gb_per_s == pytest.approx(140)
    assert dataclasses.replace(reduced, operation="all_gather").bus_gb_per_s == pytest.approx(70)


def test_nothing_lags_on_an_even_cluster() -> None:
    assert laggards(probe()) == ()


def test_a_slow_device_is_named() -> None:
    devices = tuple(device(rank, tflops=600.0 if rank == 5 else 798.0 + rank) for rank in range(8))
    (output,) = laggards(probe(devices=devices))
    assert output.startswith("device 5 on node 2 (10.0.0.3): bf16 products at 600 TFLOP/s, 25 % below")


def test_a_node_that_is_slow_with_both_neighbours_is_named_and_they_are_not() -> None:
    pairs = [
        collective
        for node in range(4)
        for pair in ((node, (node + 1) % 4),)
        for collective in collectives("pair", pair, 4, 20.0 if 1 in pair else 42.0)
    ]
    (output,) = laggards(probe(collectives=tuple(pairs)))
    assert output.startswith("node 1 (10.0.0.2): all-reduce with either neighbour at 20 GB/s")


def test_a_node_with_a_slow_inside_is_named() -> None:
    inside = [
        collective for node in range(4) for collective in collectives("node", (node,), 2, 200.0 if node == 3 else 300.0)
    ]
    (output,) = laggards(probe(collectives=tuple(inside)))
    assert output.startswith("node 3 (10.0.0.4): all-reduce between its devices")


def test_predictions_take_the_probes_figures() -> None:
    spec = from_cluster(H200S)
    slow = probe(devices=tuple(device(rank, tflops=399.0, copy_gb_per_s=2145.0) for rank in range(8)))
    corrected = with_probe(spec, slow)
    assert corrected.device.scale("bf16") == pytest.approx(0.5, rel=0.01)
    assert corrected.device.scale("fp16") == corrected.device.scale("bf16")  # not measured here: as bf16
    assert corrected.device.scale("fp32") == pytest.approx(1.0)
    assert corrected.device.bandwidth_gb_per_s == pytest.approx(spec.device.bandwidth_gb_per_s / 2, rel=0.01)
    assert corrected.device.context_gib == 0.5
    assert corrected.intra_gb_per_s == pytest.approx(300, rel=0.02)
    assert corrected.inter_gb_per_s == pytest.approx(40, rel=0.02)
    # The smallest all-reduce was made of 50 us, of which the formula's two hops of 1.5 us are no latency.
    assert corrected.intra_latency_s == pytest.approx(47e-6, rel=0.02)


def test_a_small_message_that_was_disturbed_is_no_latency() -> None:
    rows = collectives("cluster", (0, 1, 2, 3), 8, 40.0)
    between = dataclasses.replace(rows[0], num_bytes=2**18, seconds=rows[0].seconds + 8e-6)
    disturbed = dataclasses.replace(rows[0], seconds=30e-3)
    usual = with_probe(from_cluster(H200S), probe()).inter_latency_s
    spec = with_probe(from_cluster(H200S), probe(collectives=(disturbed, between, *rows[1:])))
    assert spec.inter_latency_s < 2 * usual


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_small_message_that_was_disturbed_makes_no_link_faster(share: float) -> None:
    """Checks a small message that took `share` of the largest one's time, beside one of middle size that did not."""
    rows = [row for row in collectives("cluster", (0, 1, 2, 3), 8, 40.0) if row.operation == "all_reduce"]
    small, large = min(rows, key=lambda row: row.num_bytes), max(rows, key=lambda row: row.num_bytes)
    between = dataclasses.replace(small, num_bytes=2 * small.num_bytes, seconds=small.seconds + 8e-6)
    disturbed = dataclasses.replace(small, seconds=share * large.seconds)
    spec = with_probe(from_cluster(H200S), probe(collectives=(disturbed, between, large)))
    assert spec.inter_gb_per_s == pytest.approx(40, rel=0.02)


def test_a_probe_that_agrees_with_the_catalogue_changes_little() -> None:
    spec = from_cluster(H200S)
    corrected = with_probe(spec, probe())
    assert corrected.device.scale("bf16") == pytest.approx(1.0, rel=0.01)
    assert corrected.device.bandwidth_gb_per_s == pytest.approx(spec.device.bandwidth_gb_per_s, rel=0.01)


def test_the_fingerprint_counts_devices_and_versions_and_no_host() -> None:
    mine = probe_store.fingerprint(H200S, PLACE.software)
    assert mine == probe_store.fingerprint(H200S, dict(reversed(list(PLACE.software.items()))))
    assert mine != probe_store.fingerprint(H200S, {**PLACE.software, "driver": "590"})
    assert mine != probe_store.fingerprint(dataclasses.replace(H200S, num_nodes=2), PLACE.software)
    assert mine == probe_store.fingerprint(dataclasses.replace(H200S, host_share_gib=200.0), PLACE.software)


def test_a_probe_is_found_again_by_its_cluster(tmp_path: Path) -> None:
    mine = probe(fingerprint=probe_store.fingerprint(PLACE.cluster, PLACE.software))
    assert probe_store.find(tmp_path, PLACE) is None
    path = probe_store.write(tmp_path, mine)
    assert probe_store.find(tmp_path, PLACE) == mine
    assert probe_store.find(tmp_path, dataclasses.replace(PLACE, software={"driver": "590"})) is None
    path.write_text("{}")
    with pytest.raises(InputError, match="holds no probe"):
        probe_store.find(tmp_path, PLACE)


def test_what_is_shown_has_both_units_and_the_theory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probed = probe()
    show(probed, tmp_path / "x.json", Console(width=100))
    text = capsys.readouterr().out
    for part in ("512 MiB", "whole cluster, 8 devices, 4 nodes", "of 450", "Gbit/s", "No device or node"):
        assert part in text, text
    printed = json.loads(json.dumps(to_object(probed, tmp_path / "x.json")))
    assert printed["lagging"] == [] and printed["theory"]["node"] == 450
    assert from_json(Probe, to_json(probed)) == probed


def test_parts_of_a_node_with_faster_links_count_as_nodes() -> None:
    """Checks four H200 that NCCL takes for two hosts joined by TCP, and Ray for one node."""
    one_node = dataclasses.replace(H200S, num_nodes=1, devices_per_node=4)
    devices = tuple(dataclasses.replace(device(rank), node=0) for rank in range(4))
    tcp = probe(
        cluster=one_node,
        nodes=("10.0.0.1",),
        devices=devices,
        collectives=(*collectives("part", (0,), 2, 302.0), *collectives("node", (0,), 4, 2.3)),
    )
    spec = with_probe(from_cluster(one_node), tcp)
    assert (spec.num_nodes, spec.devices_per_node) == (2, 2)
    assert spec.intra_gb_per_s == pytest.approx(302, rel=0.02)
    assert spec.inter_gb_per_s == pytest.approx(2.3, rel=0.02)
    even = dataclasses.replace(
        tcp, collectives=(*collectives("part", (0,), 2, 302.0), *collectives("node", (0,), 4, 290.0))
    )
    spec = with_probe(from_cluster(one_node), even)
    assert (spec.num_nodes, spec.devices_per_node) == (1, 4)
    assert spec.intra_gb_per_s == pytest.approx(290, rel=0.02)


def test_cpus_on_several_hosts_are_predicted_by_their_links_and_others_are_not() -> None:
    """Checks two hosts of two workers over 200 Mbit/s: what exchanges activations alone comes before DDP, and DDP
    before what gathers parameters in every micro-step.
    """
    cpus = Cluster(device_kind="cpu", device="Intel(R) Xeon(R) CPU", device_memory_gib=4.0, devices_per_node=4)
    figures = tuple(
        DeviceFigures(
            rank=rank,
            node=rank // 2,
            products=(Product(precision="fp32", size=512, tflops=0.025),),
            copy_gb_per_s=5.0,
        )
        for rank in range(4)
    )
    inside = [row for node in (0, 1) for row in collectives("node", (node,), 2, 1.0)]
    hosts = probe(
        cluster=cpus,
        nodes=("10.77.0.1", "10.77.0.2"),
        devices=figures,
        collectives=(*inside, *collectives("cluster", (0, 1), 4, 0.025)),
    )
    candidates = [entry for entry in slow_network_space(2, [8]).candidates(4)[0] if entry.recipe.compression == "none"]
    assert known_columns(candidates, cpus, None) is None
    assert known_columns(candidates, cpus, None, dataclasses.replace(hosts, nodes=("10.77.0.1",))) is None
    columns = known_columns(candidates, cpus, None, hosts)
    assert columns is not None
    prediction = predict(columns)
    assert (prediction.ok_probability == 1.0).all(), "memory is not predicted"
    order = [candidates[place].layout for place in np.argsort(prediction.step.total_s)]
    plain, pipeline = Layout(engine="ddp", dp_replicate=4), Layout(engine="ddp", dp_replicate=2, pp=2)
    assert order.index(pipeline) < order.index(plain) < order.index(order[-1])
    assert (order[-1].zero_stage, order[-1].dp_shard) == (3, 4)


def test_the_search_tries_what_the_probe_favours_first() -> None:
    """Checks that links at a hundredth of the catalogue's speed put what exchanges least before what exchanges most."""
    space = search_spaces.load("bloom7b")
    candidates, _ = space.candidates(8)
    slow = probe(collectives=(*collectives("node", (0,), 2, 3.0), *collectives("cluster", (0, 1, 2, 3), 8, 0.4)))
    usual, _ = likely_best_first(candidates, H200S, None)
    corrected_order, _ = likely_best_first(candidates, H200S, None, slow)
    assert sorted(usual, key=id) == sorted(corrected_order, key=id) and corrected_order != usual
    # As fast as the catalogue's: what comes first was among the first, where tenths of a percent decide.
    assert likely_best_first(candidates, H200S, None, probe())[0][0] in usual[:5]


def test_a_plan_takes_a_probes_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = probe(devices=tuple(device(rank, tflops=399.0) for rank in range(8)))
    times: list[float] = []
    for stored_probe in (probe(), half):
        path = probe_store.write(tmp_path, stored_probe)
        assert main(["bloom7b", "--cluster", str(path), "--json"]) == 0
        times.append(json.loads(capsys.readouterr().out)["recipes"][0]["layouts"][0]["step_time_s"])
    assert 1.3 < times[1] / times[0] < 2.0


def test_a_plan_without_a_cluster_says_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(["bloom7b"]) == 2
    assert main(["bloom7b", "--cluster", "8xH100", "--address", "10.0.0.1:6379"]) == 2
    assert main(["bloom7b", "--cluster", "missing.json"]) == 2
    output = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("error: ").split(":")[0] for line in output] == [
        "give --cluster",
        "--address belongs to --cluster ray, not to 8xH100",
        "missing.json cannot be read",
    ]
