"""Networks as users write them: behind a cluster's name, and swept."""

import pytest

from platform.cost_model.predict import SURE
from platform.plan.__main__ import main
from platform.plan.networks import parse_sweep, split_network
from platform.plan.tables import figure
from tests.plan.test_plan import printed_json

SMALL = ("gpt2", "--set", "engine=fsdp,ddp", "--set", "attention=sdpa")


def test_a_network_behind_the_cluster_is_that_of_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    written = printed_json(capsys, *SMALL, "--cluster", "2x8xH100@25")
    stated = printed_json(capsys, *SMALL, "--cluster", "2x8xH100", "--node-gbps", "25")
    assert written == stated | {"cluster": "2x8xH100@25"}
    assert written == printed_json(capsys, *SMALL, "--cluster", "2x8xH100@25", "--node-gbps", "25")
    assert split_network("probe@400.json") == ("probe@400.json", None)


def test_a_sweep_has_the_best_layout_of_each_network(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = (*SMALL, "--cluster", "2x8xH100", "--sweep", "node-gbps=1,25,400")
    rows = printed_json(capsys, *sweep)["sweep"]
    assert [row["node_gbps"] for row in rows] == [1, 25, 400]  # type: ignore[union-attr]
    speeds = [row["tokens_per_s"] for row in rows]  # type: ignore[union-attr]
    assert speeds == sorted(speeds) and speeds[0] < speeds[-1] / 2
    (alone,) = printed_json(capsys, *SMALL, "--cluster", "2x8xH100@25", "--top", "1")["recipes"]  # type: ignore[misc]
    assert alone["layouts"][0]["step_time_s"] == rows[1]["step_time_s"]  # type: ignore[index]
    for width in ("140", "80"):
        monkeypatch.setenv("COLUMNS", width)
        assert main([*sweep]) == 0
        lines = capsys.readouterr().out.splitlines()
        for row in rows:  # type: ignore[union-attr]
            of_row = " ".join(line for line in lines if line.split()[:1] == [f"{row['node_gbps']:g}"])
            assert f"{row['micro_batch']} x {row['grad_accum']}" in of_row
            bounds = f"{figure(row['step_time_low_s'])}-{figure(row['step_time_high_s'])}"
            assert (bounds in of_row) != ("±" in of_row), "an interval is printed by its ends where it is wide"
            assert str(row["layout"])[:20] in of_row


@pytest.mark.parametrize("network", (1, 10, 100))
def test_the_first_row_is_the_fastest_as_printed(capsys: pytest.CaptureFixture[str], network: int) -> None:
    """Checks slow networks, where intervals differ most in width; the first rows are those that surely fit."""
    printed = printed_json(capsys, *SMALL, "--cluster", f"2x8xH100@{network}", "--top", "500")
    layouts = printed["recipes"][0]["layouts"]  # type: ignore[index]
    speeds = [row["tokens_per_s"] for row in layouts if row["ok_probability"] >= SURE]
    assert len(speeds) > 3 and speeds == sorted(speeds, reverse=True)


def test_values_of_a_sweep_are_kept_once_and_in_order() -> None:
    assert parse_sweep("node-gbps=400,12.5,400") == (400.0, 12.5) == parse_sweep("--node-gbps=400, 12.5")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--cluster", "2x8xH100@fast"), "cluster '2x8xH100@fast' has 'fast' behind its @: write the Gbit/s"),
        (("--cluster", "2x8xH100@0"), "has '0' behind its @"),
        (("--cluster", "@400"), "cluster '@400' has"),
        (("--cluster", "2x8xH100@nan"), "has 'nan' behind its @"),
        (
            ("--cluster", "2x8xH100@400", "--node-gbps", "100"),
            "--cluster 2x8xH100@400 and --node-gbps 100 are two networks: leave one of them out",
        ),
        (("--cluster", "2x8xH100", "--sweep", "tp=1,2"), "--sweep goes through one option's values, as in node-gbps="),
        (("--cluster", "2x8xH100", "--sweep", "node-gbps"), "above 0 and at most 1e+06 Gbit/s, got ''"),
        (("--cluster", "2x8xH100", "--sweep", "node-gbps=10,-1"), "above 0 and at most 1e+06 Gbit/s, got '-1'"),
        (("--cluster", "2x8xH100@400", "--sweep", "node-gbps=10"), "tries its own networks, got 400 Gbit/s a node too"),
        (("--cluster", "8xH100", "--sweep", "node-gbps=10"), "is for several nodes, got one of 8 x H100-SXM"),
        (("--cluster", "2x8xH100", "--sweep", "node-gbps=10", "--gpus", "8,16"), "--gpus has no effect on --sweep"),
        (("--cluster", "2x8xH100", "--sweep", "node-gbps=10", "--min-nodes"), "are different questions"),
        (("--cluster", "2x8xH100", "--sweep", "node-gbps=10", "--save-layout", "x.json"), "got --sweep"),
        (("--cluster", "2x8xH100", "--sweep", "node-gbps=10", "--learn-from", "x"), "got --sweep"),
    ],
)
def test_bad_networks_are_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert main([*SMALL, *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and sentence in line
