"""The assumptions in the header of an answer: network, length, batch, price, software."""

import json
from pathlib import Path
from typing import Any

import pytest

from platform.plan.__main__ import main
from search_spaces.gpt2 import GPT2_XL
from tests.cluster.probing.samples import probe
from tests.plan.test_plan import printed_json
from trainers.spec.codec import to_json


def _shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["gpt2", "--top", "1", *arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "sentence", "network"),
    [
        (
            ("--cluster", "2x8xH100"),
            "network between nodes 3,200 Gbit/s a node (assumed, that of dgx-h100; --node-gbps states another)",
            {"gbit_per_s_a_node": 3200.0, "source": "assumed", "node": "dgx-h100"},
        ),
        (
            ("--cluster", "2xp4d.24xlarge"),
            "network between nodes 400 Gbit/s a node (that of p4d.24xlarge in the catalogue)",
            {"gbit_per_s_a_node": 400.0, "source": "catalogue", "node": "p4d.24xlarge"},
        ),
        (
            ("--cluster", "2x8xH100", "--node-gbps", "12.5"),
            "network between nodes 12.5 Gbit/s a node (as stated)",
            {"gbit_per_s_a_node": 12.5, "source": "stated", "node": "dgx-h100"},
        ),
        (
            ("--cluster", "2x8xL40S"),
            "200 Gbit/s a node are assumed, and intervals are as wide as networks differ",
            {"gbit_per_s_a_node": 200.0, "source": "assumed", "node": ""},
        ),
        (
            ("--cluster", "8xH100", "--gpus", "8,16"),
            "network between nodes 3,200 Gbit/s a node (assumed, that of dgx-h100",
            {"gbit_per_s_a_node": 3200.0, "source": "assumed", "node": "dgx-h100"},
        ),
    ],
)
def test_the_network_stands_in_the_header(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str, network: dict[str, Any]
) -> None:
    assert sentence in _shown(capsys, *arguments)
    assert printed_json(capsys, "gpt2", *arguments)["assumptions"]["network"] == network  # type: ignore[index]


def test_one_node_has_no_network_between_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert "network" not in _shown(capsys, "--cluster", "8xH100").partition("batch: micro-batch")[0]
    assert printed_json(capsys, "gpt2", "--cluster", "8xH100")["assumptions"]["network"] is None  # type: ignore[index]


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        ("64xH100", "all 64 H100-SXM of a node are taken to be linked by nvlink4, and a dgx-h100 has 8: --cluster"
                    " 8x8xH100-SXM are 8 nodes"),
        ("2x20xL40S", "all 20 L40S of a node are taken to be linked by pcie4, and a node has 16 at most: --cluster"
                      " 3x16xL40S are 3 nodes"),
        ("8xH100", ""),
        ("10xL40S", ""),
        ("dgx-2", ""),
        ("64xCPU-core", ""),
    ],
)  # fmt: skip
def test_a_node_that_is_larger_than_any_stands_in_the_header(
    capsys: pytest.CaptureFixture[str], cluster: str, sentence: str
) -> None:
    shown = _shown(capsys, "--cluster", cluster)
    assert sentence in shown and ("are taken to be linked" in shown) == bool(sentence)


def test_it_stands_in_a_comparison_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "a dgx-h100 has 8: --cluster 2x8xH100-SXM" in _shown(capsys, "--cluster", "8xB200", "--cluster", "16xH100")


@pytest.mark.parametrize("cluster", ["8xV100", "8xH100", "2x8xV100-16GB"])
def test_a_device_by_itself_has_no_price(capsys: pytest.CaptureFixture[str], cluster: str) -> None:
    assert "no price known" in _shown(capsys, "--cluster", cluster)


@pytest.mark.parametrize(
    ("question", "batch"),
    [(("--max-model", "--gpus", "1"), "of one micro-batch a device"), (("--batch-rampup", "8,16"), "of each phase")],
)
def test_rows_with_batches_of_their_own_do_not_claim_the_space_s(
    capsys: pytest.CaptureFixture[str], question: tuple[str, ...], batch: str
) -> None:
    narrow = (
        "--set",
        "engine=fsdp",
        "--set",
        "attention=sdpa",
        "--set",
        "checkpointing=full",
        "--set",
        "compile=block",
    )
    assert f"global batch {batch}, no price known" in _shown(capsys, "--cluster", "8xH100", *narrow, *question)


def test_a_network_that_one_node_does_not_use_is_said_to_have_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "25 Gbit/s have no effect: there is one node, and no network between nodes"
    assert sentence in _shown(capsys, "--cluster", "8xH100@25")
    assert "no effect" not in _shown(capsys, "--cluster", "8xH100@25", "--gpus", "8,16")


def test_length_batch_price_and_software_stand_in_the_header(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    batch = "global batch 512 (by default, --set changes it)"
    of_space = f"length 1024 (of the space), {batch}, no price known, software own trainers"
    assert of_space in _shown(capsys, "--cluster", "8xH100")
    stated = ("--set", "seq_len=512", "--price-per-gpu-h", "2", "--software", "torchtitan")
    sentence = f"length 512 (stated), {batch}, $2 a GPU-hour (stated), software torchtitan"
    assert sentence in _shown(capsys, "--cluster", "8xH100", *stated)
    assert "$6.88 a GPU-hour (the catalogue's of 2026-11-09)" in _shown(capsys, "--cluster", "p5.48xlarge")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**GPT2_XL.to_config(), "n_layer": 2}))
    assert main([str(file), "--cluster", "8xH100", "--top", "1"]) == 0
    by_default = "global batch 512 (by default, --set changes it)"
    assert by_default in " ".join(capsys.readouterr().out.split())
    assumptions = printed_json(capsys, str(file), "--cluster", "8xH100")["assumptions"]
    assert assumptions["global_batch"] == {"values": [512], "source": "by default"}  # type: ignore[index]


def test_a_probed_network_is_told_from_an_assumed_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    file.write_text(json.dumps(to_json(probe())))
    assert "network between nodes 320 Gbit/s a node (as platform.probe measured)" in _shown(
        capsys, "--cluster", str(file)
    )
