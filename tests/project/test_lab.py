"""The laboratory's rows: each says where its figure comes from, and each reference to one leads to a row."""

import csv
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAB = ROOT / "docs" / "lab"
FILES = sorted(LAB.glob("*.csv"))
ID = r"[a-z0-9]+(?:[-.][a-z0-9]+)*"
KINDS = {"measured", "derived", "predicted", "simulated", "counted"}
STATES = {"repeated", "gated", "disturbed", "negative"}
COLUMNS = "id,finding,date,what,value,unit,spread,kind,state,note,hardware,versions,commit,command,conditions"


def rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of one file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def names(path: Path) -> set[str]:
    """Returns what a reference to a file may name: its rows and its findings."""
    return {row[column] for row in rows(path) for column in ("id", "finding")}


def references() -> Iterator[tuple[str, str, str]]:
    """Yields (file, CSV, id) of each reference in a tracked text: `docs/lab/FILE.csv#ID`, or a link that ends so."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split():
        path = ROOT / name
        if path.suffix not in {".py", ".md", ".json", ".csv", ".toml", ".yaml"} or not path.exists():
            continue
        pattern = rf"\]\(([a-z-]+)\.csv#({ID})\)" if path.parent == LAB else rf"lab/([a-z-]+)\.csv#({ID})"
        for match in re.finditer(pattern, path.read_text("utf-8")):
            yield name, match.group(1), match.group(2)


def test_there_are_rows_and_references() -> None:
    assert sum(len(rows(path)) for path in FILES) > 4_000
    assert len({name for name, _, _ in references()}) > 20


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_row_says_where_its_figure_comes_from(path: Path) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        assert file.readline().strip() == COLUMNS
    wrong = [
        row["id"]
        for row in rows(path)
        if not (row["hardware"] and row["command"] and row["what"] and row["value"])
        or not re.fullmatch(r"2\d{3}-\d\d-\d\d", row["date"])
        or not re.fullmatch(rf"{re.escape(row['finding'])}\.[1-9]\d*", row["id"])
        or row["kind"] not in KINDS
        or not set(filter(None, row["state"].split(", "))) <= STATES
    ]
    assert wrong == []


def test_no_id_stands_twice_and_a_finding_is_in_one_file() -> None:
    ids = Counter(row["id"] for path in FILES for row in rows(path))
    assert [name for name, count in ids.items() if count > 1] == []
    findings = Counter(finding for path in FILES for finding in {row["finding"] for row in rows(path)})
    assert [name for name, count in findings.items() if count > 1] == []


def test_each_reference_leads_to_a_row() -> None:
    of_file = {path.stem: names(path) for path in FILES}
    lost = [reference for reference in references() if reference[2] not in of_file.get(reference[1], set())]
    assert lost == []


def test_the_tables_that_rows_name_are_there() -> None:
    named = re.compile(r"docs/measurements/(?:[a-z]+/)?[\w.-]+\.csv")
    tables = {table for path in FILES for row in rows(path) for table in named.findall(row["conditions"])}
    assert len(tables) > 30
    assert [table for table in sorted(tables) if not (ROOT / table).exists()] == []


def test_each_finding_of_the_page_names_its_rows() -> None:
    lines = [line for line in (LAB / "README.md").read_text("utf-8").splitlines() if line.startswith("- ")]
    assert len(lines) > 80
    assert [line for line in lines if ".csv#" not in line] == []


def test_nothing_refers_to_the_days_that_the_laboratory_had() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = [ROOT / name for name in listed if Path(name).suffix in {".py", ".md", ".json"} and name != "CHANGELOG.md"]
    day = re.compile(r"\blab/20\d\d-\d\d-\d\d")
    assert [str(path) for path in texts if path.exists() and day.search(path.read_text("utf-8"))] == []


def differing(text: str, of_id: dict[str, dict[str, str]]) -> list[str]:
    """Returns each link of a page whose text is a figure that its row lacks, as rounded as the link has it."""
    wrong: list[str] = []
    for link, name in re.findall(rf"\[([\d,.]+)(?: ?%|~| times)?\]\([^)]*lab/[a-z-]+\.csv#({ID})\)", text):
        row = of_id.get(name)
        figure = link.replace(",", "")
        places = len(figure.partition(".")[2])
        said = (
            re.findall(r"\d+(?:\.\d+)?", " ".join((row["value"], row["spread"], row["note"])).replace(",", ""))
            if row
            else []
        )
        if row and float(figure) not in {round(float(number), places) for number in said}:
            wrong.append(f"{link} is not in {name}")
    return wrong


def test_a_linked_figure_is_that_of_its_row() -> None:
    of_id = {row["id"]: row for path in FILES for row in rows(path)}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text("utf-8") for page in pages)
    assert len(re.findall(rf"\[[\d,.]+(?: ?%|~| times)?\]\([^)]*lab/[a-z-]+\.csv#{ID}\)", text)) > 30
    assert differing(text, of_id) == []
    assert differing("[54,789~](lab/kernels.csv#gelu-loss-kernels.39)", of_id) == [
        "54,789 is not in gelu-loss-kernels.39"
    ]


def test_the_table_of_measurements_has_the_commits_of_its_rows() -> None:
    commit_of = {row["id"]: row["commit"] for path in FILES for row in rows(path)}
    text = (ROOT / "docs" / "measurements.md").read_text("utf-8")
    named = re.findall(rf"(?m)^\|.*lab/[a-z-]+\.csv#({ID})\).*\| ([^|]*) \|$", text)
    assert len(named) > 10
    assert [name for name, commits in named if commit_of[name] not in commits] == []
