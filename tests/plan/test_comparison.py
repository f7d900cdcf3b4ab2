"""Several models and clusters in one table, their prices, and the smallest cluster that meets a deadline and a cost."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from platform.cost_model.hardware import catalogue, find_cluster
from platform.plan.__main__ import main
from platform.plan.prices import price_of
from tests.plan.test_plan import printed_json

SMALL = ("--set", "engine=fsdp", "--set", "attention=sdpa")
OFFERS = ("--cluster", "2x8xH100@400", "--cluster", "8xB200")
PRICES = ("--price", "8xB200=60/h", "--price", "H100=2.5")


def _rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    return printed_json(capsys, *arguments, *SMALL)["comparison"]  # type: ignore[return-value]


def test_a_row_is_the_plan_of_its_model_and_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _rows(capsys, "gpt2", "bloom7b", *OFFERS, *PRICES)
    assert [(row["model"], row["cluster"]) for row in rows] == [
        ("gpt2", "2x8xH100@400"), ("gpt2", "8xB200"), ("bloom7b", "2x8xH100@400"), ("bloom7b", "8xB200"),
    ]  # fmt: skip
    batch = rows[0]["recipe"].split("global batch ")[1].partition(",")[0]
    alone = printed_json(capsys, "gpt2", "--cluster", "2x8xH100@400", "--set", f"global_batch={batch}", *SMALL)
    layout = alone["recipes"][0]["layouts"][0]  # type: ignore[index]
    assert {key: rows[0][key] for key in layout if key != "cost"} == {k: v for k, v in layout.items() if k != "cost"}
    assert rows[0]["elapsed_cost"] == pytest.approx(2.5 * 16 * 24 * rows[0]["elapsed_days"])
    assert rows[1]["elapsed_cost"] == pytest.approx(60 * 24 * rows[1]["elapsed_days"])
    assert rows[0]["gpu_days"] == pytest.approx(16 * rows[0]["elapsed_days"])


@pytest.mark.parametrize("width", ("80", "160"))
def test_the_table_fits_its_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert main(["gpt2", "gpt2_xl", *OFFERS, *PRICES, *SMALL, "--deadline", "10d"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(width)
    table = [line for line in lines if " 8xB200 " in line and "yes" in line]
    assert len(table) == 2 and "network between nodes 400 Gbit/s a node (as stated)" in " ".join(lines)


def test_models_whole_and_with_adapters_are_one_table_of_what_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    choices = ("--set", "adapter=none,lora_16", "--set", "seq_len=1024", "--set", "compile=block")
    assert main(["gpt2_xl", "qwen3_8b", "--cluster", "1xH100", *choices, *SMALL]) == 0
    output = capsys.readouterr().out
    assert "GiB: memory that must be free" in " ".join(output.split())
    rows = [line for line in output.splitlines() if " 1xH100 " in line]
    assert ["out of memory" in row for row in rows] == [False, False, True, False]


def test_a_deadline_names_the_fewest_nodes_that_keep_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Checks that one node less does not, and that a longer deadline and a lower price ask for less."""
    model = ("bloom7b", "--cluster", "8xH100", "--price", "8xH100=20/h", "--tokens", "100B")

    def smallest(*demands: str) -> dict[str, Any]:
        (row,) = printed_json(capsys, *model, *SMALL, *demands)["smallest"]  # type: ignore[misc]
        return row

    row = smallest("--deadline", "3d")
    assert row["meets"] == "yes" and row["elapsed_days_high"] <= 3 and not row["listed"]
    nodes = row["gpus"] // 8
    assert nodes > 2
    (fewer, *_) = _rows(capsys, "bloom7b", "--cluster", f"{nodes - 1}x8xH100", "--deadline", "3d")
    assert fewer["cluster"] == f"{nodes - 1}x8xH100"
    assert fewer["elapsed_days_high"] > 3
    assert smallest("--deadline", "30d")["gpus"] == 8
    assert smallest("--deadline", "3d", "--max-cost", "100k")["gpus"] == row["gpus"]


def test_demands_that_no_cluster_meets_end_with_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bloom7b", "--cluster", "8xH100", "--price", "8xH100=20/h", *SMALL]
    assert main([*arguments, "--deadline", "3d", "--max-cost", "100"]) == 1
    assert "no number of these nodes surely keeps to 3 days and $100" in " ".join(capsys.readouterr().out.split())


def test_a_model_that_does_not_fit_has_a_row_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _rows(capsys, "llama3_8b", "--cluster", "1xL4", "--cluster", "8xH100")
    assert rows[0]["reason"].startswith("out of memory") and "days" not in rows[0]
    assert rows[1]["reason"] == "" and rows[1]["elapsed_days"] > 0
    assert main(["llama3_8b", "--cluster", "1xL4", "--cluster", "2xL4", *SMALL]) == 1


def test_rows_are_written_as_csv_and_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "offers.csv"
    rows = _rows(capsys, "gpt2", *OFFERS, *PRICES, "--csv", str(file))
    with file.open(newline="") as stream:
        written = list(csv.DictReader(stream))
    assert [row["cluster"] for row in written] == [row["cluster"] for row in rows]
    assert [float(row["elapsed_days"]) for row in written] == [row["elapsed_days"] for row in rows]
    assert json.loads(written[0]["shares"]) == rows[0]["shares"]
    assert main(["gpt2", *OFFERS, *SMALL, "--markdown"]) == 0
    assert "| cluster | GPUs | days |" in capsys.readouterr().out
    assert main(["gpt2", "--cluster", "8xH100", *SMALL, "--csv", str(file), "--top", "3"]) == 0
    with file.open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == 3, "a plan of one cluster has a row for each layout"


def test_a_price_of_a_node_goes_before_that_of_its_device() -> None:
    prices = ("H100=2", "p5.48xlarge=50/h")
    assert price_of(find_cluster("4xp5.48xlarge"), prices, 9.0) == 50 / 8
    assert price_of(find_cluster("4x8xH100"), prices, 9.0) == 2.0
    assert price_of(find_cluster("8xB200"), prices, 9.0) == 9.0
    assert price_of(find_cluster("8xB200"), prices, None) is None


def test_list_prices_have_a_day_and_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = catalogue()["nodes"]
    dated = {name: node for name, node in nodes.items() if "price_date" in node}
    assert len(dated) >= 5
    for name, node in dated.items():
        assert node["price_per_device_hour"] > 0 and "USD" in node["source"], name
    assert main(["gpt2", "--cluster", "p5.48xlarge", "--top", "1", *SMALL]) == 0
    assert "$6.88 a GPU-hour (the catalogue's of 2026-11-09)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--price", "8xH100=20"),
            "--price 8xH100=20 is of none of the clusters, whose devices are B200",
        ),
        (("--price", "8xB200"), "--price states dollars an hour, as in 8xB200=60/h or H100=2.5/h, got '8xB200'"),
        (("--price", "8xB200=60/d"), "--price states dollars an hour"),
        (("--price", "8xB200=0"), "--price states dollars an hour"),
        (("--price", "8xB299=60/h"), "unknown device 'B299'"),
        (("--max-cost", "20k"), "--max-cost needs the price of 8xB200: state it by --price 8xB200=DOLLARS/h"),
        (("--cluster", "8xH100", "--gpus", "8,16"), "--gpus is of one model on one cluster, got several models or"),
        (
            ("--deadline", "10d", "--save-layout", "x.json"),
            "--save-layout is of one model on one cluster, got",
        ),
        (("--cluster", "2x8xH100@400", "--node-gbps", "10"), "--node-gbps and a network behind a cluster's @ are two"),
        (("--cluster", "8xH100", "--json", "--markdown"), "--json and --markdown are two forms of one answer"),
        (("--deadline", "soon"), "must be a duration above 0"),
    ],
)
def test_bad_offers_are_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert main(["gpt2", "--cluster", "8xB200", *SMALL, *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and sentence in line


def test_a_cluster_without_a_price_is_shown_beside_one_that_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    clusters = ("--cluster", "2x8xH100@400", "--cluster", "8xB200")
    demands = ("--price", "8xB200=60/h", "--deadline", "1000d", "--max-cost", "1e9")
    assert main(["gpt2", *clusters, *demands, *SMALL, "--json"]) == 0
    unpriced, priced = json.loads(capsys.readouterr().out)["comparison"]
    assert (unpriced["cost"], unpriced["meets"], priced["meets"]) == (None, "perhaps", "yes")
