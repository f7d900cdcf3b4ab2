"""The choices of NCCL and gloo, from logs in the forms that NCCL 2.18 to 2.28 write, beside what hosts have."""

import dataclasses
from pathlib import Path

import pytest

from platform.cluster.probing.choices import choice_sentences, disagreements, link_sentence
from tests.cluster.probing.samples import H200S, collectives, device, probe
from trainers.measuring.network import adapters, gloo_choice, nccl_choice
from trainers.records.probe import Adapter, LibraryChoice, Probe
from trainers.spec.codec import from_json, to_json

SOCKETS = """
a:11:15 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
a:11:15 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
a:11:15 [0] NCCL INFO Using network Socket
a:11:15 [0] NCCL INFO comm 0x5a1 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
a:11:18 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/Socket/0
a:11:18 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
a:11:15 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 1 p2p channels per peer
"""
VERBS = """
b:21:25 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.2<0>
b:21:25 [0] NCCL INFO Initialized NET plugin IB
b:21:25 [0] NCCL INFO comm 0x5b2 rank 1 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
b:21:28 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
b:21:28 [0] NCCL INFO Channel 08/0 : 1[1] -> 2[0] [send] via NET/IB/1/GDRDMA
b:21:25 [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer
"""
ALONE = """
c:31:35 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.3<0>
c:31:35 [0] NCCL INFO Using network IB
c:31:35 [0] NCCL INFO comm 0x5c3 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0
c:31:38 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
c:31:35 [0] NCCL INFO 24 coll channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer
"""
ETHERNET = Adapter(name="eth0", kind="Ethernet", gbit_per_s=25.0)
FABRIC = Adapter(name="mlx5_0:1", kind="InfiniBand", gbit_per_s=200.0)


def probe_with(choice: LibraryChoice | None, *hosts: tuple[Adapter, ...], **environment: str) -> Probe:
    """Returns a probe of two devices a host, with what the library chose there."""
    names = tuple(f"10.0.0.{number}" for number in range(1, len(hosts) + 1))
    return probe(
        cluster=dataclasses.replace(H200S, num_nodes=len(hosts)),
        nodes=names,
        devices=tuple(device(rank) for rank in range(2 * len(hosts))),
        collectives=tuple(collectives("cluster", (0, 1), 4, 2.3)),
        environment=environment,
        adapters=hosts,
        choice=choice,
    )


def test_sockets_are_read_from_nccl_s_log() -> None:
    assert nccl_choice([SOCKETS]) == LibraryChoice(
        library="NCCL",
        hosts=2,
        networks=("Socket",),
        interfaces=("eth0",),
        inside=("P2P",),
        channels=2,
        gpu_direct=False,
    )


def test_infiniband_with_gpu_direct_is_read_from_nccl_s_log() -> None:
    choice = nccl_choice([VERBS, VERBS])
    assert choice == LibraryChoice(
        library="NCCL", hosts=2, networks=("IB",), interfaces=("mlx5_0", "mlx5_1"), channels=16, gpu_direct=True
    )
    assert disagreements(probe_with(choice, (ETHERNET, FABRIC), (ETHERNET, FABRIC))) == ()


def test_one_host_uses_no_network_whatever_it_could_use() -> None:
    choice = nccl_choice([ALONE])
    assert choice is not None and (choice.networks, choice.inside, choice.hosts) == ((), ("P2P",), 1)
    assert choice_sentences(probe_with(choice, (FABRIC,)))[0] == "NCCL moves data directly between GPUs, 24 channels."


@pytest.mark.parametrize("log", ["", "a:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"])
def test_a_log_without_a_communicator_shows_no_choice(log: str) -> None:
    assert nccl_choice([log]) is None
    assert disagreements(probe_with(None, (FABRIC,))) == ()


def test_sockets_where_every_host_has_infiniband_disagree_and_the_setting_is_named() -> None:
    both = (ETHERNET, FABRIC)
    (sentence,) = disagreements(probe_with(nccl_choice([SOCKETS]), both, both, NCCL_IB_DISABLE="1"))
    assert sentence == (
        "NCCL uses TCP sockets over eth0, though every node has mlx5_0:1 (InfiniBand 200 Gbit/s): the workers have"
        " NCCL_IB_DISABLE=1."
    )
    assert disagreements(probe_with(nccl_choice([SOCKETS]), both, (ETHERNET,))) == (), "one host has none"


def test_two_hosts_to_nccl_and_one_node_to_ray_disagree() -> None:
    (sentence,) = disagreements(probe_with(nccl_choice([SOCKETS]), (ETHERNET,)))
    assert sentence.startswith("NCCL takes the devices for those of 2 hosts and Ray for those of 1")


def test_verbs_without_gpu_direct_are_named() -> None:
    choice = nccl_choice([VERBS.replace("/GDRDMA", "")])
    (sentence,) = disagreements(probe_with(choice, (FABRIC,), (FABRIC,)))
    assert "copies through host memory: GPUDirect RDMA is off" in sentence


def test_the_slower_of_two_interfaces_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    slow = Adapter(name="eno1", kind="Ethernet", gbit_per_s=1.0)
    choice = gloo_choice(["eno1", "eno1", ""], hosts=2)
    (sentence,) = disagreements(probe_with(choice, (slow, ETHERNET), (slow, ETHERNET)))
    assert sentence == "gloo uses TCP sockets over eno1, though every node has eth0 (Ethernet 25 Gbit/s)."
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert disagreements(probe_with(gloo_choice(["eno1"], hosts=2), (slow, ETHERNET), (slow, ETHERNET))) == ()


def test_a_host_s_adapters_are_read_from_the_kernel(tmp_path: Path) -> None:
    files = {
        "net/eth0/type": "1",
        "net/eth0/operstate": "up",
        "net/eth0/speed": "25000",
        "net/eth1/type": "1",
        "net/eth1/operstate": "down",
        "net/lo/type": "772",
        "net/veth/type": "1",
        "net/veth/operstate": "up",
        "net/veth/speed": "-1",
        "net/ib0/type": "32",
        "net/ib0/operstate": "up",
        "infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
        "infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)",
        "infiniband/mlx5_1/ports/1/state": "1: DOWN",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert adapters(tmp_path) == (ETHERNET, Adapter(name="veth", kind="Ethernet"), FABRIC)
    assert adapters(tmp_path / "nothing") == ()


def test_a_probe_with_these_facts_survives_its_file_and_older_ones_lack_them() -> None:
    probed = probe_with(nccl_choice([SOCKETS]), (ETHERNET, FABRIC), (ETHERNET,))
    stored = to_json(probed)
    assert from_json(Probe, stored) == probed
    older = {name: value for name, value in stored.items() if name not in ("adapters", "choice")}
    assert choice_sentences(from_json(Probe, older)) == ()
    assert link_sentence(probed) == "All-reduce has a bus bandwidth of 2.30 GB/s between 2 nodes."
