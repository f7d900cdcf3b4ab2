"""Scores measured tables into docs/accuracy.json, from which `make docs` makes docs/reference/accuracy.md.

    python -m scripts.accuracy TABLE.csv ...     scores the tables; other tables' scores stay in the file

The tables are not part of this project: each score has its table's sha256, and the command and commit that made it.
"""

import argparse
import dataclasses
import hashlib
import json
import pathlib
import subprocess
from typing import Any

from platform.common.errors import InputError
from platform.validate.metrics import Scores
from platform.validate.rows import read_rows
from platform.validate.validation import JSON_KEYS, to_json, validate

DOCS = pathlib.Path(__file__).parents[1] / "docs"
SCORES = DOCS / "accuracy.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """A way of scoring tables."""

    name: str
    options: str
    num_calibrate: int = 0
    min_cell: int = 1


MODES = (
    Mode(name="Zero-shot", options=""),
    Mode(name="With 3 measured a cell", options=" --calibrate 3 --min-cell 10", num_calibrate=3, min_cell=10),
)  # fmt: skip
HEADLINE = "Software left out"
COLUMNS = (
    ("rows_scored", "rows", ""), ("step_time_ape_median", "step time, median", "%"),
    ("step_time_ape_mean", "mean", "%"), ("near_best_ape_median", "within 1.5 of the best, median", "%"),
    ("regret_mean", "regret, mean", "%"), ("oom_precision", "OOM precision", "%"), ("oom_recall", "OOM recall", "%"),
    ("memory_ape_median", "memory, median", "%"), ("interval_coverage", "80 % intervals hold", "%"),
    ("interval_half_width_median", "half-width, median", "%"),
)  # fmt: skip


def score(path: pathlib.Path, commit: str) -> list[dict[str, Any]]:
    """Returns the scores of one table in every mode for which it has a large enough cell."""
    scores: list[dict[str, Any]] = []
    for mode in MODES:
        try:
            report = validate(read_rows(path), num_calibrate=mode.num_calibrate, min_cell=mode.min_cell)
        except InputError:
            continue
        scores.append(
            {
                "table": path.name,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "mode": mode.name,
                "command": f"python -m platform.validate {path.name}{mode.options} --json",
                "commit": commit,
                "scores": to_json(report)["overall"],
            }
        )
    return scores


def keep(path: pathlib.Path, mode: str, command: str, scores: Scores) -> None:
    """Writes the scores of one table in one mode into the file, replacing older ones."""
    entry = {
        "table": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "mode": mode,
        "command": command,
        "commit": _commit(),
        "scores": {key: getattr(scores, key) for key in JSON_KEYS},
    }
    others = [other for other in _read() if (other["table"], other["mode"]) != (path.name, mode)]
    _write([*others, entry])


def _commit() -> str:
    return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True, cwd=DOCS).strip()


def _read() -> list[dict[str, Any]]:
    return json.loads(SCORES.read_text(encoding="utf-8")) if SCORES.exists() else []


def _write(scores: list[dict[str, Any]]) -> None:
    scores.sort(key=lambda entry: (entry["table"], entry["mode"]))
    SCORES.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


def page() -> str:
    """Returns the page in Markdown, from the file of scores."""
    scores = _read()
    lines = [
        "# Accuracy of the cost model",
        "",
        "Made from [accuracy.json](../accuracy.json), which has each table's sha256, the command and the commit. The"
        " tables are not part of this project. The columns are explained in [cost-model.md](../cost-model.md#accuracy)."
        " *3 measured a cell*: predictions are corrected by three rows of each cell; only cells of at least 10"
        " configurations count.",
        "",
        "***Software left out* shows the accuracy for software that this project has no runs of**: all facts of the"
        " table's software are left out (`python -m benchmarks.leave_one_table_out` lists them). The formulas and"
        " constants themselves were set with all of these tables at hand, so the other parts are not blind tests.",
        "",
        "Some steps of nanotron's sweep stall, which no layout predicts: many of its pairs of rows that differ only in"
        " the ZeRO stage are more than 1.5 times apart in speed"
        " ([how many](../lab/cost-model.csv#cost-software-unknown.2)). Its rows without such a difference have a part"
        " of their own.",
        "",
        "The commit beside the name of a part is that of its scores; later changes of the model are not included.",
    ]  # fmt: skip
    further = sorted({entry["mode"] for entry in scores} - {mode.name for mode in MODES})
    lines += ["", "| table | " + " | ".join(name for _, name, _ in COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    first = [name for name in further if name.startswith(HEADLINE)]
    for name in (*first, *(mode.name for mode in MODES), *(name for name in further if name not in first)):
        rows = [entry for entry in scores if entry["mode"] == name]
        commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
        lines.append(f"| **{name}**{f' ({commits})' if commits else ''} |" + " |" * len(COLUMNS))
        for row in rows:
            cells = [_cell(row["scores"][key], unit) for key, _, unit in COLUMNS]
            lines.append(f"| {row['table']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{100 * value:.1f} %" if unit else f"{value:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "tables", metavar="TABLE.csv", nargs="+", type=pathlib.Path, help="measured tables to score anew"
    )
    tables = parser.parse_args().tables
    scores, names = _read(), [mode.name for mode in MODES]
    for path in tables:
        others = [entry for entry in scores if entry["table"] != path.name or entry["mode"] not in names]
        scores = others + score(path, _commit())
    _write(scores)


if __name__ == "__main__":
    main()
