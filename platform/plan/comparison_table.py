"""Prints models on clusters as one table with the result for the demands; converts rows to JSON."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from platform.common.text import count as short_count
from platform.cost_model.predict import SURE
from platform.plan.comparison import Compared, Demands
from platform.plan.goodput import Interruptions
from platform.plan.tables import PREDICTED, WIDE, batch_of, chance_of, figure, planned_json, table_of


def show_comparison(rows: Sequence[Compared], demands: Demands, interruptions: Interruptions, console: Console) -> None:
    """Prints the table; in a narrow terminal the layouts follow below it, by number."""
    console.print(f"run by {rows[0].cluster.software}, {PREDICTED}", highlight=False)
    numbered = console.width < WIDE + 20
    several = len({(row.model, row.recipe.id) for row in rows}) > 1
    names = ["#"] if numbered else []
    tunes = _tunes(rows)
    names += [
        *(["model"] if several else []),
        "cluster",
        "GPUs",
        "days",
        "80 %",
        "train",
        "GPU-days",
        "cost $",
        "memory ok",
    ]
    names += ["GiB", "tok/s"] if tunes else []
    names += [*(["meets"] if demands else []), *([] if numbered else ["batch", "layout"])]
    table = table_of(*names)
    for column in table.columns:
        column.justify = "left" if column.header in ("model", "cluster", "layout", "meets") else "right"
    for number, row in enumerate(rows, 1):
        cells = [str(number)] if numbered else []
        cells += [*([_model(row, rows)] if several else []), row.written, str(row.cluster.num_devices)]
        cells += [
            *_figures(row),
            *(_fit(row) if tunes else []),
            *([row.meets(demands)] if demands else []),
            *([] if numbered else _layout(row)),
        ]
        table.add_row(*cells)
    console.print(table, highlight=False)
    for number, row in enumerate(rows if numbered else (), 1):
        console.print(f"{number:>3}  {': '.join(reversed(_layout(row))) if row.best.planned else row.best.reason}")
    console.print(_legend(rows, demands, interruptions), highlight=False)


def _model(row: Compared, rows: Sequence[Compared]) -> str:
    """Returns the model's name with the parts of the recipe's label that differ between recipes of this model."""
    labels = [other.recipe.label.split(", ") for other in rows if other.model == row.model]
    shared = set(labels[0]).intersection(*labels)
    return ", ".join([row.model, *(word for word in row.recipe.label.split(", ") if word not in shared)])


def _figures(row: Compared) -> list[str]:
    planned, days = row.best.planned, row.elapsed
    if planned is None or days is None:
        return ["-"] * 6
    return [
        figure(days.days),
        f"{figure(days.low_days)}-{figure(days.high_days)}",
        figure(days.train_days),
        figure(days.days * row.cluster.num_devices),
        "-" if row.dollars is None else f"{row.dollars:,.0f}",
        chance_of(planned),
    ]


def _tunes(rows: Sequence[Compared]) -> bool:
    """Returns whether any row trains adapters. The table then also shows memory and speed."""
    return any(row.recipe.adapter_rank for row in rows)


def _fit(row: Compared) -> list[str]:
    """Returns the cells for needed memory (GiB) and speed (tokens/s)."""
    planned = row.best.planned
    return ["-", "-"] if planned is None else [f"{planned.needed_gib:.0f}", f"{planned.tokens_per_s:,.0f}"]


def _layout(row: Compared) -> list[str]:
    planned = row.best.planned
    return ["-", row.best.reason] if planned is None else [batch_of(planned), planned.layout.label]


def _legend(rows: Sequence[Compared], demands: Demands, interruptions: Interruptions) -> str:
    tokens = " or ".join(dict.fromkeys(short_count(row.tokens) for row in rows))
    meanings = [
        f"days: for {tokens} tokens (--tokens), with checkpoints, restarts and failures: {interruptions.words}",
        "80 %: their interval, of the step time and of failures",
        "train: days of steps that are kept",
        f"memory ok: probability that memory suffices, {100 * SURE:.0f} % is sure",
        *(["GiB: memory that must be free"] if _tunes(rows) else []),
        "batch: micro-batch x accumulated micro-batches",
    ]
    if demands:
        meanings.append(f"meets: whether the whole interval keeps to {demands.words}, or a part of it does")
    if any(row.dollars is None for row in rows):
        meanings.append("cost: give --price CLUSTER=DOLLARS/h")
    return "; ".join(meanings)


def show_smallest(
    listed: Compared, smallest: Compared | None, cheapest: Compared | None, demands: Demands, console: Console
) -> None:
    """Prints the smallest cluster that meets the demands for the recipe of `listed`."""
    if smallest is None:
        console.print(f"{listed.model}: no number of these nodes surely keeps to {demands.words}", highlight=False)
        return
    words = f"{listed.model}: the smallest that keeps to {demands.words} is {_named(smallest)}"
    if cheapest is not None and cheapest is not smallest:
        words += f"; the cheapest {_named(cheapest)}"
    console.print(words, highlight=False)


def _named(row: Compared) -> str:
    assert row.elapsed is not None
    cost = "" if row.dollars is None else f", ${row.dollars:,.0f}"
    return f"{row.written}, {row.cluster.num_devices} GPUs: {figure(row.elapsed.days)} days{cost}"


def row_json(row: Compared, demands: Demands) -> dict[str, Any]:
    """Returns a row as JSON. The cost is null if the price is unknown; all figures are null if nothing fits."""
    days, planned = row.elapsed, row.best.planned
    figures = {} if planned is None else planned_json(planned, row.cluster, row.tokens)
    costs = [None if days is None else row.cost(end) for end in _ends(row)]
    return {
        "model": row.model,
        "recipe": row.recipe.label,
        "cluster": row.written,
        "listed": row.listed,
        "gpus": row.cluster.num_devices,
        "tokens": row.tokens,
        "meets": row.meets(demands) if demands else None,
        **({} if days is None else days.to_json()),
        "gpu_days": days and days.days * row.cluster.num_devices,
        "elapsed_cost": row.dollars,
        "elapsed_cost_low": costs[0],
        "elapsed_cost_high": costs[1],
        "price_per_gpu_h": row.cluster.price_per_device_hour,
        "reason": row.best.reason,
        **figures,
    }


def _ends(row: Compared) -> tuple[float, float]:
    return (0.0, 0.0) if row.elapsed is None else (row.elapsed.low_days, row.elapsed.high_days)
