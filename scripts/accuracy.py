"""Scores measured tables into docs/accuracy.json, from which `make docs` makes docs/reference/accuracy.md.

    python -m scripts.accuracy TABLE.csv ...     scores the tables and this project's rows; other scores stay
                                                 in the file

Published tables are not part of this project: each score has its table's sha256, and the command and commit that made
it.
"""

import argparse
import dataclasses
import hashlib
import json
import pathlib
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from platform.common.errors import InputError
from platform.validate.evaluation import join
from platform.validate.metrics import Scores
from platform.validate.metrics import scores as scores_of
from platform.validate.published_run import PublishedRun
from platform.validate.replaying.command import LARGE
from platform.validate.replaying.play import make, play
from platform.validate.replaying.recorded import cells
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
HEADLINE_CALIBRATED = "Software left out, 3 measured a cell"
OWN = "This project's rows"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A wanted figure: every table of a mode has it between `least` and `most`."""

    name: str
    mode: str
    key: str
    least: float = 0.0
    most: float = 1.0

    @property
    def words(self) -> str:
        if not self.least:
            return f"<= {100 * self.most:g} %"
        return f">= {100 * self.least:g} %" if self.most == 1 else f"{100 * self.least:g} to {100 * self.most:g} %"


WANTED = (
    Wanted(name="software at hand, step time", mode="Zero-shot", key="step_time_ape_median", most=0.05),
    Wanted(name="software at hand, intervals hold", mode="Zero-shot", key="interval_coverage", least=0.7, most=0.9),
    Wanted(name="software left out, step time", mode=HEADLINE, key="step_time_ape_median", most=0.1),
    Wanted(name="software left out, intervals hold", mode=HEADLINE, key="interval_coverage", least=0.7, most=0.9),
    Wanted(name="software left out, half-width", mode=HEADLINE, key="interval_half_width_median", most=0.25),
    Wanted(name="with 3 rows a cell, step time", mode=HEADLINE_CALIBRATED, key="step_time_ape_median", most=0.05),
    Wanted(name="with 3 rows a cell, median more than without", mode=HEADLINE_CALIBRATED, key="hurt", most=0.0),
    Wanted(name="out of memory, precision", mode="Zero-shot", key="oom_precision", least=0.95),
    Wanted(name="out of memory, recall", mode="Zero-shot", key="oom_recall", least=0.95),
    Wanted(name="memory", mode="Zero-shot", key="memory_ape_median", most=0.1),
    Wanted(name="this project's rows, step time", mode=OWN, key="step_time_ape_median", most=0.025),
    Wanted(name="this project's rows, intervals hold", mode=OWN, key="interval_coverage", least=0.8, most=0.9),
)  # fmt: skip
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
                "trials": {} if mode.num_calibrate else searched(report.scored.runs),
            }
        )
    return scores


def searched(runs: Sequence[PublishedRun]) -> dict[str, list[int]]:
    """Returns the trials to within 2 % of the best by searcher, in each cell of merged runs that is large enough."""
    large = [cell for cell in cells(runs) if len(cell.choices) >= LARGE]
    return {
        name: [play(cell, make(name, cell, 0), len(cell.choices)).num_trials for cell in large]
        for name in ("guided", "model")
    }


def own_rows(commit: str) -> dict[str, Any]:
    """Returns the scores of this project's measurements on GPUs, each table's runs beside each other."""
    paths = sorted(path for path in (DOCS / "measurements").rglob("*H[12]00.csv"))
    scored = join([validate(read_rows(path)).scored for path in paths])
    figures = scores_of(scored, range(len(scored.runs)), 0)
    return {
        "table": "docs/measurements",
        "sha256": hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest(),
        "mode": OWN,
        "command": "python -m scripts.accuracy",
        "commit": commit,
        "scores": {key: getattr(figures, key) for key in JSON_KEYS},
    }


def keep(
    path: pathlib.Path, mode: str, command: str, scores: Scores, trials: dict[str, list[int]] | None = None
) -> None:
    """Writes the scores of one table in one mode into the file, replacing older ones."""
    entry = {
        "table": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "mode": mode,
        "command": command,
        "commit": _commit(),
        "scores": {key: getattr(scores, key) for key in JSON_KEYS},
        "zero_shot_ape_median": scores.zero_shot_ape_median,
        "trials": trials or {},
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
        "**Where a wanted figure is not reached**, rows say what could be at best. Nanotron left out: its error is"
        " that of pipelines over nodes with tensor parallelism, a part of their own. No code states its cause"
        " ([what was read](../lab/cost-model.csv#bounds.4)); with this one fact of its cluster the median is [11.1"
        " %](../lab/cost-model.csv#bounds.1), and a row's twin of another ZeRO stage is [11.4"
        " %](../lab/cost-model.csv#cost-rows-left.5) off, which bounds its rows at hand too; intervals that hold 80"
        " % of its rows would be [eight times as wide](../lab/cost-model.csv#left-out-causes.11). Three rows a"
        " cell: a factor for each cell, chosen with all measured times, leaves vTrain [5.5"
        " %](../lab/cost-model.csv#bounds.5), and all other rows of a cell [4.7 %](../lab/cost-model.csv#bounds.7)."
        " BigScience's repeats of one configuration are [3.6 %](../lab/cost-model.csv#bounds.8) apart, and [three"
        " of its rows](../lab/cost-model.csv#left-out-causes.19) are on the wrong side of a device's memory. MLPerf"
        " has two to eight rows for each [family of devices](../lab/cost-model.csv#bounds.10). This project's rows"
        " are [1.65 %](../lab/cost-model.csv#bounds.11) off those of the same configuration in another study."
        " *Times the table's best factor* bounds what one rate of a software could reach. Models of today that"
        " nobody here had measured are in [the laboratory](../lab/layouts.csv#five-new-models).",
        "",
        "The commit beside the name of a part is that of its scores; later changes of the model are not included.",
    ]  # fmt: skip
    lines += ["", *_wanted(scores)]
    further = sorted({entry["mode"] for entry in scores} - {mode.name for mode in MODES})
    lines += ["", "| table | " + " | ".join(name for _, name, _ in COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    first = [name for name in further if name.startswith(HEADLINE)]
    for name in (*first, *(mode.name for mode in MODES), *(name for name in further if name not in first)):
        rows = [entry for entry in scores if entry["mode"] == name]
        commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
        lines.append(f"| **{name}**{f' ({commits})' if commits else ''} |" + " |" * len(COLUMNS))
        for row in rows:
            words = [_cell(row["scores"][key], unit) for key, _, unit in COLUMNS]
            lines.append(f"| {row['table']} | " + " | ".join(words) + " |")
    return "\n".join(lines) + "\n"


def _wanted(scores: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines of a table of wanted and reached figures."""
    yield "| wanted of every table | wanted | reached | by tables |"
    yield "|---|---|---|---|"
    for wanted in WANTED:
        entries = [entry for entry in scores if entry["mode"] == wanted.mode]
        values = [value for entry in entries if (value := _figure(entry, wanted.key)) is not None]
        if values:
            ends = " to ".join(dict.fromkeys(f"{100 * end:.3g} %" for end in (min(values), max(values))))
            met = sum(wanted.least <= value <= wanted.most for value in values)
            yield f"| {wanted.name} | {wanted.words} | {ends} | {met} of {len(values)} |"
    for name, mode in (("software at hand", "Zero-shot"), ("software left out", HEADLINE)):
        pairs = [
            pair
            for entry in scores
            if entry["mode"] == mode and entry.get("trials")
            for pair in zip(entry["trials"]["guided"], entry["trials"]["model"], strict=True)
        ]
        if pairs:
            guided = [pair[0] for pair in pairs]
            behind = max(pair[0] - pair[1] for pair in pairs)
            yield (
                f"| {name}, guided search: trials, median and mean; most behind the plain ranking | 1, 2; 1 |"
                f" {statistics.median(guided):g}, {statistics.fmean(guided):.1f}; {behind} | {len(pairs)} cells |"
            )


def _figure(entry: dict[str, Any], key: str) -> float | None:
    """Returns a score of an entry; `hurt` is by how much its median error is above that of its rows before three of
    them were measured.
    """
    if key != "hurt":
        return entry["scores"][key]
    before = entry.get("zero_shot_ape_median")
    return None if before is None else max(entry["scores"]["step_time_ape_median"] - before, 0.0)


def _cell(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{100 * value:.1f} %" if unit else f"{value:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "tables", metavar="TABLE.csv", nargs="*", type=pathlib.Path, help="measured tables to score anew"
    )
    tables = parser.parse_args().tables
    scores, names = _read(), [mode.name for mode in MODES]
    for path in tables:
        others = [entry for entry in scores if entry["table"] != path.name or entry["mode"] not in names]
        scores = others + score(path, _commit())
        _write(scores)
    _write([*(entry for entry in scores if entry["mode"] != OWN), own_rows(_commit())])


if __name__ == "__main__":
    main()
