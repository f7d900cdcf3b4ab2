"""The table a person reads: best first, what failed after it with its reason, fitted to the terminal's width."""

import dataclasses
import io
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.measure import Measurement as Extent
from rich.table import Table, box
from rich.text import Text

from platform.finals.ranking import winner
from platform.reports import text
from platform.reports.summary import cost_for_tokens, shortfall_gib
from platform.study.history import by_recipe
from trainers.cluster import Cluster
from trainers.measurement import Measurement, Outcome, days_for_tokens

STYLES = {
    Outcome.OK: "",
    Outcome.THRASH: "yellow",
    Outcome.SLOW: "dim",
    Outcome.SKIPPED: "dim",
}
"""How rows look by outcome; what is not here is a failure and red."""
_MOST_SKIPPED = 6
"""Reasons for skipping that are listed; the rest is counted."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    title: str
    cell: Callable[[Measurement], str]
    drop: int = 0
    """When it goes where the width does not do: 1 first, 0 never."""
    point: bool = False
    """Whether it says what was run (for failures too), not what came out."""
    left: bool = False


def render(
    measurements: Sequence[Measurement],
    *,
    cluster: Cluster,
    tokens: float,
    width: int,
    price_per_gpu_h: float | None = None,
    color: bool = False,
) -> str:
    """One table for each recipe, at most `width` columns wide; `tokens` is the budget that days are counted for, with
    a price their cost too.
    """
    screen, stream = console(width=width, color=color)
    for group in by_recipe(measurements).values():
        _render_recipe(screen, group, cluster, _columns(cluster, tokens, price_per_gpu_h))
    return as_text(stream)


def console(*, width: int, color: bool) -> tuple[Console, io.StringIO]:
    """A console that writes into a string, letters as they are; and the string."""
    stream = io.StringIO()
    made = Console(
        file=stream,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    return made, stream


def as_text(stream: io.StringIO) -> str:
    """What was written, without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _render_recipe(console: Console, group: Sequence[Measurement], cluster: Cluster, columns: list[_Column]) -> None:
    best = winner(group)
    ran = [each for each in group if each.tokens_per_s is not None]
    failed = [each for each in group if each.tokens_per_s is None and each.outcome is not Outcome.SKIPPED]
    skipped = [each for each in group if each.outcome is Outcome.SKIPPED and each.tokens_per_s is None]
    ran.sort(key=lambda each: (each is not best, each.outcome is not Outcome.OK, -(each.tokens_per_s or 0.0)))
    failed.sort(key=lambda each: (each.outcome.value, each.layout.label, each.batch.micro_batch))

    recipe = group[0].recipe
    if group[0].miniature:
        console.print(
            f"MINIATURE of {recipe.model.miniature_of}, its speed says nothing of the model itself", style="bold"
        )
    console.print(f"{recipe.label}, on {cluster.label}", style="bold")
    columns, same, gone = _fit(console, columns, [*ran, *failed], ran, best)
    if same:
        console.print(f"In every row: {', '.join(same)}")
    if ran:
        console.print(_table(columns, ran, best))
    if failed:
        console.print()
        console.print(_failures(columns, failed, cluster))
    console.print()
    for line in (*_skipped_lines(skipped), *_notes(ran, best, gone)):
        console.print(line)
    console.print()


def _columns(cluster: Cluster, tokens: float, price_per_gpu_h: float | None) -> list[_Column]:
    def percent(share: float | None) -> str:
        return "" if share is None else f"{100 * share:.1f}"

    def tilde(each: Measurement) -> str:
        return "~" if each.step_time_derived else ""

    def days(each: Measurement) -> str:
        return text.figure(days_for_tokens(tokens, each.tokens_per_s)) + tilde(each) if each.tokens_per_s else ""

    def cost(each: Measurement) -> str:
        if not each.tokens_per_s or price_per_gpu_h is None:
            return ""
        return text.figure(cost_for_tokens(tokens, each.tokens_per_s, each.num_devices, price_per_gpu_h)) + tilde(each)

    priced = [] if price_per_gpu_h is None else [_Column(title="cost", cell=cost, drop=11)]
    device = "GPU" if cluster.device_kind == "cuda" else "worker"
    return [
        _Column(title=f"{device}s", cell=lambda m: str(m.num_devices), drop=4, point=True),
        _Column(title="engine", cell=lambda m: m.layout.engine, point=True, left=True),
        _Column(title="sharding", cell=lambda m: text.sharding(m.layout), point=True, left=True),
        _Column(title="degrees", cell=lambda m: text.degrees(m.layout), drop=9, point=True, left=True),
        _Column(title="precision", cell=lambda m: m.recipe.compute_precision, drop=1, point=True, left=True),
        _Column(title="checkp.", cell=lambda m: m.layout.checkpointing, point=True, left=True),
        _Column(title="options", cell=lambda m: text.options(m.layout), point=True, left=True),
        _Column(title="seq.", cell=lambda m: str(m.recipe.seq_len), drop=1, point=True),
        _Column(title="MBS", cell=lambda m: str(m.batch.micro_batch), point=True),
        _Column(title="GAS", cell=lambda m: str(m.batch.grad_accum), drop=7, point=True),
        _Column(title="global\nbatch", cell=lambda m: str(m.recipe.global_batch), drop=1, point=True),
        _Column(title="step\ns", cell=lambda m: text.figure(m.step_time_s) + tilde(m), drop=6),
        _Column(title="tokens\n/s", cell=lambda m: text.figure(m.tokens_per_s) + tilde(m)),
        _Column(title=f"tokens/s\n/{device}", cell=lambda m: text.figure(m.tokens_per_s_per_gpu) + tilde(m), drop=8),
        _Column(title="±%", cell=_spread, drop=5),
        _Column(title=f"TFLOP/s\n/{device}", cell=lambda m: text.figure(m.model_tflops_per_gpu) + tilde(m), drop=10),
        _Column(title="% of\npeak", cell=lambda m: percent(m.share_of_matmul_peak), drop=3),
        _Column(title="util.\n%", cell=lambda m: text.figure(m.utilization_pct), drop=2),
        _Column(title="GiB", cell=lambda m: text.figure(m.peak_allocated_gib)),
        _Column(title=f"days for\n{text.count(tokens)}", cell=days, drop=11),
        *priced,
        _Column(title="outcome", cell=_outcome, left=True),
    ]


def _narrow(columns: Sequence[_Column]) -> list[_Column]:
    """The layout in one column that may be folded over lines, in place of one for each of its parts."""
    parts = {"engine", "sharding", "degrees", "checkp.", "options"}
    rest = [column for column in columns if column.title not in parts]
    return [_Column(title="layout", cell=lambda m: m.layout.label, point=True, left=True), *rest]


def _fit(
    console: Console,
    columns: list[_Column],
    rows: Sequence[Measurement],
    ran: Sequence[Measurement],
    best: Measurement | None,
) -> tuple[list[_Column], list[str], list[str]]:
    """Columns that fit the width, what is said once for all rows instead, and the titles left out.

    First what is the same in every row leaves the table, then the least telling figures, and on a narrow terminal the
    parts of the layout share one column.
    """
    same: list[str] = []
    gone: list[str] = []
    if _width(console, columns, ran, best) <= console.width:
        return columns, same, gone
    for column in [each for each in columns if each.point and (len(rows) > 1 or each.drop == 1)]:
        values = {column.cell(row) for row in rows}
        if len(values) == 1:
            columns = [each for each in columns if each is not column]
            same.append(f"{_flat(column.title)} {values.pop()}")
    for attempt in (columns, _narrow(columns)):
        columns, gone = attempt, []
        for column in sorted((each for each in attempt if each.drop), key=lambda each: each.drop):
            if _width(console, columns, ran, best) <= console.width:
                break
            columns = [each for each in columns if each is not column]
            gone.append(_flat(column.title))
        # Half of the figures gone is worse than a layout over two lines.
        if _width(console, columns, ran, best) <= console.width and len(gone) <= 4:
            break
    return columns, same, gone


def _width(console: Console, columns: Sequence[_Column], ran: Sequence[Measurement], best: Measurement | None) -> int:
    extent = Extent.get(console, console.options.update(width=1000), _table(columns, ran, best))
    if columns[0].title == "layout":
        longest = max((len(row.layout.label) for row in ran), default=0)
        return extent.maximum - max(0, longest - 24)
    return extent.maximum


def _table(columns: Sequence[_Column], rows: Sequence[Measurement], best: Measurement | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        fold = column.title == "layout"
        table.add_column(
            column.title,
            justify="left" if column.left else "right",
            vertical="top",
            no_wrap=not fold,
            min_width=24 if fold else None,
            overflow="fold" if fold else "ellipsis",
        )
    for row in rows:
        style = "bold green" if row is best else STYLES.get(row.outcome, "red")
        cells = [column.cell(row) for column in columns]
        if row is best:
            cells[-1] += " *"
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


def _failures(columns: Sequence[_Column], rows: Sequence[Measurement], cluster: Cluster) -> Table:
    """What was tried and gave no figure: the point's columns, then the reason in the room that figures leave."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    point = [column for column in columns if column.point]
    for column in point:
        fold = column.title in ("layout", "options")
        table.add_column(
            column.title,
            justify="left" if column.left else "right",
            no_wrap=not fold,
            min_width=12 if fold else None,
            overflow="fold" if fold else "ellipsis",
        )
    table.add_column("outcome", no_wrap=True)
    table.add_column("reason", min_width=20, overflow="fold")
    for row in rows:
        cells = [*(column.cell(row) for column in point), _outcome(row), short_reason(row, cluster)]
        table.add_row(*(Text(cell) for cell in cells), style=STYLES.get(row.outcome, "red"))
    return table


def short_reason(measurement: Measurement, cluster: Cluster) -> str:
    """Why there is no figure, in a few words."""
    # An OOM without sizes is a kill for want of host memory.
    if measurement.outcome is not Outcome.OOM or measurement.asked_gib is None:
        words = " ".join(measurement.reason.split())
        return words if len(words) <= 160 else words[:157] + "..."
    parts = [measurement.phase.replace("_", " and ")] if measurement.phase else []
    if measurement.rank is not None:
        parts.append(f"rank {measurement.rank}")
    parts.append(f"asked {text.figure(measurement.asked_gib)} GiB")
    if measurement.allocated_gib is not None:
        parts.append(f"held {text.figure(measurement.allocated_gib)}")
    missing = shortfall_gib(measurement, cluster)
    if missing:
        parts.append(f"{text.figure(missing)} too many")
    return ", ".join(parts)


def _skipped_lines(skipped: Sequence[Measurement]) -> list[str]:
    if not skipped:
        return []
    reasons: dict[str, list[Measurement]] = {}
    for row in skipped:
        reasons.setdefault(" ".join(row.reason.split()), []).append(row)
    layouts = len({row.layout.id for row in skipped})
    lines = [f"Never run: {text.plural(len(skipped), 'batch point')} of {text.plural(layouts, 'layout')}."]
    for reason, rows in list(reasons.items())[:_MOST_SKIPPED]:
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        lines.append(f"  {rows[0].layout.label}, MBS {rows[0].batch.micro_batch}{more}: {reason}")
    left = sum(len(rows) for rows in list(reasons.values())[_MOST_SKIPPED:])
    return [*lines, f"  and {left} more, see --json"] if left else lines


def _notes(ran: Sequence[Measurement], best: Measurement | None, gone: Sequence[str]) -> list[str]:
    notes: list[str] = []
    if best is not None:
        notes.append("* the winner")
    for row in ran:
        if row.outcome is not Outcome.OK and row.reason:
            point = f"{row.layout.label}, MBS {row.batch.micro_batch}"
            notes.append(f"Not counted: {point}: {row.outcome.value}, {' '.join(row.reason.split())}")
    if any(row.step_time_derived for row in ran):
        notes.append("~ derived from the parts of a step with fewer micro-steps")
    legend = {
        "±%": "±%: half the distance of the step time's quartiles.",
        "TFLOP/s": "TFLOP/s: model FLOPs, recomputation not counted.",
        "% of peak": "% of peak: of the measured matmul peak.",
        "GiB": "GiB: most allocated, on the fullest device.",
    }
    if ran:
        notes.append(
            " ".join(said for title, said in legend.items() if not any(each.startswith(title) for each in gone))
        )
    if gone:
        notes.append(f"Left out at this width: {', '.join(gone)}.")
    return notes


def _spread(measurement: Measurement) -> str:
    low, high, step = measurement.step_time_low_s, measurement.step_time_high_s, measurement.step_time_s
    return "" if low is None or high is None or not step else f"{100 * (high - low) / (2 * step):.1f}"


def _outcome(measurement: Measurement) -> str:
    run = f" (run {measurement.repeat})" if measurement.repeat else ""
    return f"{measurement.outcome.value}{run}"


def _flat(title: str) -> str:
    return title.replace("\n", " ").replace(" /", "/")
