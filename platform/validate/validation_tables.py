"""Prints a validation as tables in a terminal."""

import itertools
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from platform.cost_model.predict import SURE
from platform.validate.evaluation import Scored
from platform.validate.published_run import PublishedRun
from platform.validate.validation import CellReport, Report
from trainers.spec.layout_axes import MODEL_PARALLEL

_WIDE = 72
"""Terminal width below which the tables omit constant MFU by cell and the interval of a row."""

_STATED = {
    "flash_attention": "flash {}",
    "attention": "{}",
    "mlp": "{} MLP",
    "loss": "{} loss",
    "compile": "compiled {}",
    "grad_sync": "sync {}",
    "optimizer": "{}",
    "state_precision": "{} states",
    "offload": "offload {}",
    "compression": "{}",
}
"""Columns that a row may leave out (`mlp` comes from its notes), and the text for each value."""


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _pair_text(ours: str, other: str, *, wide: bool) -> str:
    return f"{ours} ({other})" if wide and other != "-" else ours


_FIGURES = (
    ("step time, median error", lambda s: _percent(s.step_time_ape_median)),
    ("step time, mean error", lambda s: _percent(s.step_time_ape_mean)),
    ("  of rows within 1.5 times their cell's best", lambda s: _percent(s.near_best_ape_median)),
    ("memory, median error", lambda s: _percent(s.memory_ape_median)),
    ("rank correlation", lambda s: _number(s.rank_correlation)),
    ("regret of the predicted best, median", lambda s: _percent(s.regret_median)),
    ("regret of the predicted best, mean", lambda s: _percent(s.regret_mean)),
    ("out of memory: precision", lambda s: _percent(s.oom_precision, 0)),
    ("out of memory: recall", lambda s: _percent(s.oom_recall, 0)),
    ("80 % intervals hold", lambda s: _percent(s.interval_coverage, 0)),
    ("their median half-width", lambda s: _percent(s.interval_half_width_median)),
)


_CONTRADICTS = "contradicts itself"
"""Beginning of the note on a row whose figures exclude each other."""


def _aspects(run: PublishedRun) -> tuple[str, ...]:
    """Returns the aspects that distinguish configurations, as text; "" for an aspect without a value."""
    row, values = {**run.row, "mlp": str(run.layout["mlp"])}, run.values
    stated = {
        name: value
        for name in (*_STATED, "engine", "activation_ckpt")
        if (value := row.get(name, "")) not in ("", "none", "plain")
    }
    engine = stated.get("engine", "")
    return (
        row["model"],
        f"s{row['seq_len']}",
        f"{row['gpus']} x {run.cluster.device.name}",
        row["strategy"] if engine in ("", row["strategy"]) else f"{engine} {row['strategy']}".rstrip(),
        " ".join(f"{name}{values[name]:g}" for name in (*MODEL_PARALLEL, "virtual", "dp") if values[name] > 1),
        f"{values['micro_batch']:g}x{values['grad_accum']:g}",
        f"{stated['activation_ckpt']} ckpt" if "activation_ckpt" in stated else "",
        row["precision"],
        *(text.format(stated[name]) if name in stated else "" for name, text in _STATED.items()),
    )


def _row(scored: Scored, position: int, label: str) -> tuple[str, ...]:
    measured, memory = scored.measured_s[position], scored.measured_gib[position]
    return (
        label,
        "OOM" if scored.runs[position].out_of_memory else f"{measured:.3g}" if measured == measured else "-",
        f"{scored.predicted_s[position]:.3g}",
        f"{scored.low_s[position]:.3g}-{scored.high_s[position]:.3g}",
        f"{memory:.1f}" if memory == memory else "-",
        f"{scored.predicted_gib[position]:.1f}",
        _verdict(float(scored.ok_probability[position])),
    )


def _verdict(probability: float) -> str:
    """Returns text such as "ok 98 %" (probability of running within memory); "open" if neither outcome is sure."""
    word = "ok" if probability >= SURE else "OOM" if probability <= 1 - SURE else "open"
    return f"{word} {100 * probability:.0f} %"


def show_rows(report: Report, console: Console) -> None:
    """Prints each configuration by the aspects that differ in the table, measured beside predicted, unmeasured last."""
    scored_tables = [scored for scored in (report.scored, report.unmeasured) if scored]
    aspects = [_aspects(run) for scored in scored_tables for run in scored.runs]
    differs = [len(set(values)) > 1 for values in zip(*aspects, strict=True)]
    common = [text for text, varies in zip(aspects[0], differs, strict=True) if text and not varies]
    if any(differs) and common:
        console.print(f"In every row: {', '.join(common)}", highlight=False, markup=False)
    labels = [" ".join(filter(None, itertools.compress(aspect, differs))) or ", ".join(common) for aspect in aspects]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("configuration", ratio=1, min_width=14, overflow="fold")
    names = ("step s", "predicted", "80 %", "GiB", "predicted", "memory")
    is_shown = [name != "80 %" or console.width >= _WIDE for name in names]
    for name in itertools.compress(names, is_shown):
        table.add_column(name, justify="right", no_wrap=True)
    runs = [(scored, position) for scored in scored_tables for position in range(len(scored.runs))]
    for (scored, position), label in zip(runs, labels, strict=True):
        table.add_row(*itertools.compress(_row(scored, position, label), (True, *is_shown)))
    console.print(table, highlight=False)
    for (scored, position), label in zip(runs, labels, strict=True):
        for note in scored.runs[position].row.get("notes", "").split("; "):
            if note.startswith(_CONTRADICTS):
                console.print(f"{label} {note}.", highlight=False, markup=False)


def show(report: Report, console: Console, *, num_calibrate: int) -> None:
    overall = report.overall
    method = f"{num_calibrate} configurations a cell measured" if num_calibrate else "zero-shot"
    console.print(
        f"{overall.rows_scored} configurations scored, {method}; {report.num_merged_away} repeated rows merged,"
        f" {overall.rows_left_out} of {report.num_rows} rows left out"
        + (f", {report.num_small} configurations in smaller cells not scored" if report.num_small else "")
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("cost model", justify="right")
    table.add_column("constant MFU", justify="right")
    for name, text in _FIGURES:
        table.add_row(name, text(overall), text(report.baseline))
    console.print(table)
    if num_calibrate:
        before = _percent(overall.zero_shot_ape_median)
        console.print(f"the same rows before calibrating: step time, median error {before}", highlight=False)
    console.print(
        f"out of memory: {overall.oom_missed} missed, {overall.oom_false_alarms} false alarms,"
        f" first choice of {overall.oom_first_choices} cells",
        highlight=False,
    )
    _show_cells(report.cells, console)
    if report.assumed:
        console.print("\nTaken for granted", highlight=False)
        for assumption, count in report.assumed:
            console.print(f"  {count:4d}  {assumption}", highlight=False, markup=False)
    if report.left_out:
        console.print("\nLeft out", highlight=False)
        for reason, count in report.left_out:
            console.print(f"  {count:4d}  {reason}", highlight=False, markup=False)


def _show_cells(cells: Sequence[CellReport], console: Console) -> None:
    wide = console.width >= _WIDE
    brackets = " (constant MFU in brackets; it knows neither memory nor intervals)" if wide else ""
    console.print(f"\nBy cell{brackets}", highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("cell", ratio=1, min_width=12, overflow="fold")
    figure_names = ("time error", "rank", "regret") if wide else ()
    for name in ("rows", "time error", "mem.", "rank", "regret", "OOM p/r", "80 %"):
        table.add_column(name, justify="right", no_wrap=name not in figure_names)
    for cell in cells:
        ours, base = cell.ours, cell.baseline
        oom = "-"
        if ours.oom_precision is not None or ours.oom_recall is not None:
            oom = f"{_number(ours.oom_precision)[:3]}/{_number(ours.oom_recall)[:3]}"
        table.add_row(
            cell.label,
            str(ours.rows_scored),
            _pair_text(_percent(ours.step_time_ape_median), _percent(base.step_time_ape_median, 0), wide=wide),
            _percent(ours.memory_ape_median, 0),
            _pair_text(_number(ours.rank_correlation), _number(base.rank_correlation), wide=wide),
            _pair_text(_percent(ours.regret_median), _percent(base.regret_median, 0), wide=wide),
            oom,
            _percent(ours.interval_coverage, 0),
        )
    console.print(table)
