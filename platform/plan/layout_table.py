"""Prints a recipe's best layouts as a table, with faster but less sure ones and the reasons for skipped points."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from platform.common.text import count as short_count
from platform.cost_model.hardware import ClusterSpec
from platform.cost_model.predict import SURE
from platform.plan.goodput import Interruptions, elapsed
from platform.plan.planned import AS_FAST, LayoutPlan, PredictedLayout
from platform.plan.tables import (
    INTERVAL,
    PREDICTED,
    WIDE,
    batch_of,
    chance_of,
    conditions,
    figure,
    interval_of,
    price,
    table_of,
)


def show_plan(plan: LayoutPlan, tokens: float, interruptions: Interruptions, console: Console) -> None:
    recipe, cluster = plan.recipe, plan.cluster
    console.print(f"{recipe.label}\n{conditions(cluster, plan.learned or PREDICTED)}", highlight=False)
    peaks = cluster.device.tflops
    if recipe.compute_precision == "bf16" and peaks["bf16"] < peaks["fp16"]:
        console.print(
            f"{cluster.device.name} multiplies bf16 at {peaks['bf16']:g} TFLOP/s and fp16 at {peaks['fp16']:g}:"
            " --set compute_precision=fp16 asks for the faster one",
            highlight=False,
        )
    if not plan.best:
        console.print(f"nothing fits in memory: {plan.nearest}", highlight=False)
    else:
        _show_best(plan, tokens, console)
        console.print(_with_interruptions(plan, tokens, interruptions), highlight=False)
    for sentence in plan.at_ends:
        console.print(sentence, highlight=False)
    console.print(
        f"{plan.num_points:,} points looked at; {plan.num_layouts:,} layouts have one that fits in memory,"
        f" {plan.num_too_large:,} have none",
        highlight=False,
    )
    if plan.lost_by:
        losses = ", ".join(f"{part} ({count:,})" for part, count in plan.lost_by)
        console.print(f"the others lose most time beside the first row in: {losses}", highlight=False)
    reasons = Table.grid(padding=(0, 1))
    reasons.add_column(justify="right")
    for reason, count in plan.skipped:
        reasons.add_row(f"  {count:,}", f"skipped: {reason}")
    console.print(reasons)


def _note_on_chance(plan: LayoutPlan) -> str:
    """Returns a sentence on a faster point that is less sure to fit, or on an unsure first layout; otherwise ""."""
    first, faster = plan.best[0], plan.faster_if_it_fits
    if first.ok_probability < SURE:
        return f"memory suffices for no layout with {100 * SURE:.0f} % probability: a search measures which ones run"
    gain = 100 * (faster.tokens_per_s / first.tokens_per_s - 1) if faster else 0.0
    if faster is None or gain < 0.05:
        return ""
    return (
        f"{gain:.1f} % faster, but memory suffices with {chance_of(faster)} probability only: {faster.layout.label},"
        f" batch {batch_of(faster)}"
    )


def _show_best(plan: LayoutPlan, tokens: float, console: Console) -> None:
    """Prints the table of the best layouts and the parts of the first layout's step."""
    cluster, best = plan.cluster, tuple(planned for planned, _ in plan.distinct)
    labels = [", ".join(filter(None, (planned.layout.label, others.words))) for planned, others in plan.distinct]
    numbered = console.width < WIDE
    first = "#" if numbered else "layout"
    table = table_of(
        first, "batch", "GiB", "memory ok", "step s", "80 %", "tok/s", "MFU", "days", "cost $", "why slower"
    )
    for number, (planned, label) in enumerate(zip(best, labels, strict=True), 1):
        days = planned.days(tokens)
        table.add_row(
            str(number) if numbered else label,
            batch_of(planned),
            f"{planned.needed_gib:.0f}",
            chance_of(planned),
            figure(planned.step_s),
            interval_of(planned),
            figure(planned.tokens_per_s),
            f"{100 * planned.mfu:.0f} %",
            figure(days),
            price(cluster, days, cluster.num_devices),
            _why_slower(planned, best[0]) + (", measured" if planned.measured else ""),
        )
    console.print(table, highlight=False)
    for number, label in enumerate(labels if numbered else (), 1):
        console.print(f"{number:>3}  {label}", highlight=False)
    if note := _note_on_chance(plan):
        console.print(note, highlight=False)
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in best[0].shares.items() if share >= 0.005)
    console.print(f"the best one's step: {shares}", highlight=False)
    console.print(_legend(best, cluster, tokens), highlight=False)


def _with_interruptions(plan: LayoutPlan, tokens: float, interruptions: Interruptions) -> str:
    days = elapsed(plan.best[0], plan.recipe, plan.cluster, tokens, interruptions)
    return (
        f"with checkpoints, restarts and failures the first takes {figure(days.days)} days"
        f" ({figure(days.low_days)}-{figure(days.high_days)}), of which {figure(days.train_days)} train:"
        f" {interruptions.words}"
    )


def _why_slower(planned: PredictedLayout, first: PredictedLayout) -> str:
    if planned.loses_by or planned is first:
        return planned.loses_by or "best"
    is_faster = planned.tokens_per_s > first.tokens_per_s * (1 + AS_FAST)  # but less sure to fit
    return "faster" if is_faster else "as fast"


def _legend(best: Sequence[PredictedLayout], cluster: ClusterSpec, tokens: float) -> str:
    """Returns the legend of the table's columns."""
    meanings = [
        "batch: micro-batch x accumulated micro-batches",
        f"memory ok: probability that memory suffices, layouts of {100 * SURE:.0f} % and more first",
        INTERVAL,
        f"days: for {short_count(tokens)} tokens (--tokens)",
    ]
    if len(best) > 1:
        meanings.append("why slower: the part of the step that takes most time beyond the first row's")
    if cluster.price_per_device_hour is None:
        meanings.append("cost: give --price-per-gpu-h")
    return "; ".join(meanings)
