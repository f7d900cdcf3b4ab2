"""`python -m platform.probe` in earnest: on two CPU workers through Ray, and on ranks that pose as several machines."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from platform.cluster.probing.command import main
from platform.cluster.probing.probe_run import BUDGET_S
from tests.cluster.probing.ranks import CONNECTING_S, MESSAGE_BYTES
from tests.whole_searches.session import ROOT
from trainers.records.probe import OPERATIONS

BUSY_S = 300.0
"""Seconds that Ray's start and end may take beyond the probe's own limit, on a machine that others use too."""


def play(tmp_path: Path, nodes: str, seconds: float, *precision: str) -> dict[str, Any]:
    """Runs a rank on each of `nodes` and returns what rank 0 finds; with a `precision`, of a trial's short probe."""
    command = [sys.executable, "-m", "tests.cluster.probing.ranks"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), nodes, str(tmp_path / "meeting"), str(seconds), *precision],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(nodes.split(",")))
    ]
    ended = [rank.communicate(timeout=900) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), ended
    return json.loads(ended[0][0])


@pytest.mark.contract
def test_nodes_are_measured_apart_together_and_in_pairs(tmp_path: Path) -> None:
    figures = play(tmp_path, "a,a,b,c", seconds=240)
    assert figures["nodes"] == ["host-a", "host-b", "host-c"] and not figures["cut_short"]
    assert [device["node"] for device in figures["devices"]] == [0, 0, 1, 2]
    kinds = {(figure["scope"], tuple(figure["nodes"]), figure["ranks"]) for figure in figures["collectives"]}
    assert kinds == {
        ("node", (0,), 2),
        ("cluster", (0, 1, 2), 4),
        ("pair", (0, 1), 3),
        ("pair", (1, 2), 2),
        ("pair", (2, 0), 3),
    }
    inside = [figure for figure in figures["collectives"] if figure["scope"] == "node"]
    assert [figure["operation"] for figure in inside] == [name for name in OPERATIONS for _ in range(5)]
    assert all(figure["seconds"] > 0 for figure in figures["collectives"])


@pytest.mark.contract
def test_a_probe_that_runs_out_of_time_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    figures = play(tmp_path, "a,a", seconds=0)
    assert figures["cut_short"] and figures["collectives"] == [] and figures["devices"][0]["products"] == []
    assert figures["devices"][1]["copy_gb_per_s"] > 0


@pytest.mark.contract
def test_a_trial_s_short_probe_measures_links_first_and_parts_of_a_node(tmp_path: Path) -> None:
    figures = play(tmp_path, "a,a,a,a", 240, "fp32")
    of_scope = {
        scope: [row for row in figures["collectives"] if row["scope"] == scope and row["operation"] == "all_reduce"]
        for scope in ("part", "node")
    }
    assert {row["ranks"] for row in of_scope["part"]} == {2} and {row["ranks"] for row in of_scope["node"]} == {4}
    assert len({row["num_bytes"] for row in of_scope["node"]}) > 1
    shortest = [row["seconds"] for row in figures["collectives"] if row["num_bytes"] == MESSAGE_BYTES[0]]
    assert max(shortest) < CONNECTING_S  # what connects a group is not its latency
    assert figures["choice"]["library"] == "gloo" and len(figures["adapters"]) == 1
    assert {product["precision"] for device in figures["devices"] for product in device["products"]} <= {"fp32"}


def run(*arguments: str) -> str:
    """Runs a command of ours that must end well, and returns its standard output."""
    command = [sys.executable, "-m", *arguments]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.mark.heavy
@pytest.mark.ray
def test_two_cpu_workers_are_probed_and_a_plan_finds_them(tmp_path: Path) -> None:
    """Checks a probe, which takes less than a minute on a machine of its own. On a busy machine Ray's start alone may
    take that long: then little is in flight when the probe's time is over, and the end takes as long as Ray does.
    """
    where = ("--address", "local", "--studies", str(tmp_path))
    result = json.loads(run("platform.probe", *where, "--json"))
    assert result["cluster"]["devices_per_node"] == len(result["devices"]) == 2
    assert result["seconds"] < BUDGET_S + BUSY_S
    stored = json.loads(Path(result["file"]).read_text())
    assert Path(result["file"]) == tmp_path / ".probes" / f"{result['fingerprint']}.json"
    assert stored["devices"] == result["devices"] and len(stored["nodes"]) == 1
    small = ("--set", "global_batch=8", "--set", "seq_len=128")
    shown = run("platform.plan", "gpt2", "--cluster", "ray", *where, *small)
    assert f"({result['fingerprint']})" in shown and "as probed" in " ".join(shown.split())


def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--adress"]) == 2
    assert main(["--address", "127.0.0.1:9"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "--adress" in lines[0] and "no Ray answers at 127.0.0.1:9" in lines[1]
