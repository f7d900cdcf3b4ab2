"""Prints plans: tables and a chart in the terminal."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from platform.common.text import plural
from platform.cost_model.hardware import ClusterSpec
from platform.cost_model.predict import SURE
from platform.plan.max_model import Largest
from platform.plan.planned import PredictedLayout
from platform.plan.sizes import EFFICIENCY, UNSURE, AtSize, Fewest, RampPhase

WIDE = 100
"""Terminal width from which layouts stand in the table; in a narrower terminal they follow below, by number."""


_NARROW = 72
"""Terminal width below which no bars are drawn."""


def figure(value: float) -> str:
    """Returns the value with three significant digits and thousands separators."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table_of(*columns: str, first: str = "left") -> Table:
    """Returns an empty table without lines; the first column is left-aligned by default."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 and first == "left" else "right", overflow="fold")
    return table


def cluster_label(cluster: ClusterSpec) -> str:
    """Returns a label such as "4 nodes x 8 x A100-80GB (79.2 GiB)"."""
    nodes = f"{cluster.num_nodes} nodes x " if cluster.num_nodes > 1 else ""
    return f"{nodes}{cluster.devices_per_node} x {cluster.device.name} ({cluster.device.memory_gib:.1f} GiB)"


PREDICTED = "predicted, nothing measured"


def conditions(cluster: ClusterSpec, basis: str = PREDICTED, *, by_size: bool = False) -> str:
    """Returns the line above an answer: devices (with `by_size` one node of several sizes), software, source."""
    place = (
        f"nodes of {cluster_label(dataclasses.replace(cluster, num_nodes=1))}" if by_size else cluster_label(cluster)
    )
    return f"on {place}, run by {cluster.software}, {basis}"


def price(cluster: ClusterSpec, days: float, num_devices: int) -> str:
    """Returns the cost of this many days, or "-" if the price is unknown."""
    hourly = cluster.price_per_device_hour
    return "-" if hourly is None else f"{hourly * num_devices * 24 * days:,.0f}"


def batch_of(planned: PredictedLayout) -> str:
    """Returns text such as "8 x 4": micro-batch x accumulated micro-steps."""
    return f"{planned.micro_batch} x {planned.grad_accum}"


def chance_of(planned: PredictedLayout) -> str:
    """Returns text such as "62 %": the probability of running within memory."""
    return f"{100 * planned.ok_probability:.0f} %"


_WIDE_INTERVAL = 0.3
"""Relative half width above which the interval of a step time is printed by its ends, because the two halves differ."""


INTERVAL = "80 %: interval of the step time, by its ends in seconds where it is wider than 30 %"
"""Legend text for `interval_of`."""


def interval_of(planned: PredictedLayout) -> str:
    """Returns the 80 % interval of the step time: text such as "±8 %", or "3.9-12.1" in seconds if it is wide."""
    half = max(planned.high_s / planned.step_s - 1, 1 - planned.low_s / planned.step_s)
    if half > _WIDE_INTERVAL:
        return f"{figure(planned.low_s)}-{figure(planned.high_s)}"
    return f"±{100 * half:.0f} %"


def show_sizes(
    sizes: Sequence[AtSize], cluster: ClusterSpec, tokens: float, console: Console, *, by_node: bool = False
) -> None:
    """Prints days and device-days by number of devices or nodes, with bars of the days on a logarithmic scale."""
    timed = [(size, size.planned.days(tokens)) for size in sizes if size.planned is not None]
    bar_titles = ("days, log scale",) if console.width >= _NARROW else ()
    count_titles = ("nodes", "GPUs") if by_node else ("GPUs",)
    table = table_of(*count_titles, "days", "GPU-days", "cost $", "MFU", "best layout", *bar_titles, first="right")
    for column in table.columns[len(count_titles) + 4 :]:
        column.justify = "left"
    longest = max((days for _, days in timed), default=1.0)
    shortest = min((days for _, days in timed), default=1.0)
    for size in sizes:
        planned = size.planned
        counts = [str(size.num_devices)]
        if by_node:
            counts.insert(0, str(size.num_devices // cluster.devices_per_node))
        if planned is None:
            table.add_row(*counts, "-", "-", "-", "-", size.reason, *("" for _ in bar_titles))
            continue
        days = planned.days(tokens)
        span = math.log(longest / shortest) or 1.0
        bar = "█" * (1 + round(15 * math.log(days / shortest) / span))
        table.add_row(
            *counts,
            figure(days),
            figure(days * size.num_devices),
            price(cluster, days, size.num_devices),
            f"{100 * planned.mfu:.0f} %",
            f"{planned.layout.label}, batch {batch_of(planned)}"
            + (f", memory suffices with {chance_of(planned)} probability" if planned.ok_probability < SURE else "")
            + (", measured" if planned.measured else ""),
            *(bar for _ in bar_titles),
        )
    console.print(table, highlight=False)


def show_fewest(fewest: Fewest, cluster: ClusterSpec, console: Console) -> None:
    """Prints the memory of the smallest layout and the figures of the chosen layout."""
    console.print(
        f"the fewest with enough memory: {plural(fewest.num_nodes, 'node')} of {cluster.devices_per_node} x"
        f" {cluster.device.name}",
        highlight=False,
    )
    table = table_of("a rank holds, at its peak", "GiB")
    for part, gib in fewest.parts_gib.items():
        table.add_row(part, f"{gib:.1f}")
    outside_gib = fewest.needed_gib - sum(fewest.parts_gib.values())
    table.add_row("rounding, context, communicators", f"{outside_gib:.1f}")
    table.add_row("needed", f"{fewest.needed_gib:.1f}")
    table.add_row("there", f"{cluster.device.memory_gib:.1f}")
    console.print(table, highlight=False)
    console.print(f"that is {fewest.smallest}; {fewest.rank} binds", highlight=False)
    if (other := fewest.rounded) is not None:
        console.print(
            f"{other.num_nodes} nodes have enough memory too, with another recipe:"
            f" --set global_batch={other.global_batch}, which"
            f" {other.num_nodes * cluster.devices_per_node} devices share evenly",
            highlight=False,
        )
    full = [(nodes, reason) for nodes, reason in fewest.refused_sizes if reason.startswith(("out of", UNSURE))]
    for nodes, reason in (full or fewest.refused_sizes)[-1:]:
        console.print(f"{plural(nodes, 'node')} would be too few: {reason}", highlight=False)


def show_phases(phases: Sequence[RampPhase], console: Console) -> None:
    table = table_of("NNODES", "BS", "MBS", "accum", "tok/s", "a GPU's rate", "layout", first="right")
    table.columns[6].justify = "left"
    for phase in phases:
        planned = phase.planned
        table.add_row(
            str(phase.num_nodes),
            str(phase.global_batch),
            str(planned.micro_batch),
            str(planned.grad_accum),
            figure(planned.tokens_per_s),
            f"{100 * phase.efficiency:.0f} % of best",
            planned.layout.label,
        )
    console.print(table, highlight=False)
    console.print(
        f"NNODES: the most that keep {100 * EFFICIENCY:.0f} % of a phase's best rate a GPU, unless given",
        highlight=False,
    )


def show_largest(largest: Sequence[Largest], console: Console) -> None:
    numbered = console.width < WIDE
    names = ("GPUs", "params", "layers", "hidden", "heads", "GiB", "step s", "TFLOP/s")
    table = table_of(*names, *(() if numbered else ("layout",)), first="right")
    table.columns[-1].justify = "right" if numbered else "left"
    for size in largest:
        planned = size.planned
        table.add_row(
            str(size.num_devices),
            f"{size.recipe.model.num_parameters / 1e9:.2f}B",
            str(size.recipe.model.num_layers),
            str(size.recipe.model.hidden_size),
            str(size.recipe.model.num_heads),
            f"{planned.needed_gib:.1f}",
            figure(planned.step_s),
            figure(planned.mfu * planned.peak_tflops),
            *(() if numbered else (f"{planned.layout.label}, batch {batch_of(planned)}",)),
        )
    console.print(table, highlight=False)
    for size in largest if numbered else ():
        label = f"{size.planned.layout.label}, batch {batch_of(size.planned)}"
        console.print(f"{size.num_devices:>4}  {label}", highlight=False)
    console.print("TFLOP/s are a GPU's", highlight=False)
    top, recipe = largest[-1], largest[-1].recipe
    axis_values = {
        "seq_len": recipe.seq_len,
        "global_batch": recipe.global_batch,
        "compute_precision": recipe.compute_precision,
        "micro_batch": top.planned.micro_batch,
    }
    settings = " ".join(f"--set {axis}={value}" for axis, value in axis_values.items())
    console.print(
        f"To measure the last one on {top.num_devices} devices, keep the next line as grown.json and run"
        f" python -m platform.search grown.json {settings}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(json.dumps(recipe.model.to_config()), highlight=False, soft_wrap=True)


def planned_json(planned: PredictedLayout, cluster: ClusterSpec, tokens: float) -> dict[str, Any]:
    """Returns one layout as JSON; the cost is null if the price is unknown."""
    hourly = cluster.price_per_device_hour
    return {
        "layout": planned.layout.label,
        "layout_id": planned.layout.id,
        "micro_batch": planned.micro_batch,
        "grad_accum": planned.grad_accum,
        "step_time_s": planned.step_s,
        "step_time_low_s": planned.low_s,
        "step_time_high_s": planned.high_s,
        "tokens_per_s": planned.tokens_per_s,
        "mfu": planned.mfu,
        "needed_gib": planned.needed_gib,
        "fit_probability": planned.fit_probability,
        "ok_probability": planned.ok_probability,
        "days": planned.days(tokens),
        "cost": None if hourly is None else hourly * planned.layout.world_size * 24 * planned.days(tokens),
        "shares": dict(planned.shares),
        "loses_by": planned.loses_by,
        "software": cluster.software,
        "measured": planned.measured,
    }
