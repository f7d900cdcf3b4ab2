"""The page of the fastest run of each committed table of measurements, a row a recipe."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from platform.reports.table import Row, read_csv

TABLES = Path(__file__).resolve().parents[2] / "docs" / "measurements"
_TOP = """# Measured on H200s

The fastest run of each recipe in each table of [docs/measurements](../measurements/), by total tokens/s. `~` marks a
figure derived from a step of two or three micro-steps. A table holds one or more studies; not every fastest run passed
the numerics gate: [measurements.md](../measurements.md) says which did, and what was learned.
"""
_COLUMNS = (
    "table", "model", "GPUs", "length", "batch", "precision, optimizer", "runs", "fastest layout", "MBS x GAS",
    "tokens/s", "TFLOP/s a GPU", "GiB",
)  # fmt: skip


def page() -> str:
    """Returns the page in Markdown."""
    lines = [_TOP, f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for path in sorted(TABLES.glob("*.csv")):
        lines += (f"| {' | '.join(cells)} |" for cells in _cells(path))
    return "\n".join(lines) + "\n"


def _cells(path: Path) -> Iterator[list[str]]:
    """Yields a row for each recipe of a table with at least one `ok` run."""
    rows = read_csv(path)
    for recipe in dict.fromkeys(row.recipe for row in rows):
        of_recipe = [row for row in rows if row.recipe == recipe]
        ran = [row for row in of_recipe if row.outcome == "ok"]
        if ran:
            best = max(ran, key=lambda row: (row.tokens_per_s_per_gpu or 0) * (row.gpus or 1))
            yield [f"[{path.stem}](../measurements/{path.name})", *_figures(best), *_layout(best, of_recipe)]


_SHARDING = {
    ("fsdp", "zero2"): "FSDP2 stage 2", ("fsdp", "fsdp"): "FSDP2 stage 3", ("fsdp", "hsdp"): "FSDP2 hybrid",
    ("ddp", "ddp"): "DDP", ("deepspeed", "ddp"): "ZeRO-0", ("deepspeed", "zero1"): "ZeRO-1",
    ("deepspeed", "zero2"): "ZeRO-2", ("deepspeed", "zero3"): "ZeRO-3",
}  # fmt: skip
"""Common name by engine and the tables' word for what is sharded."""
_KERNELS = {"chunked": "chunked loss", "block": "compiled blocks", "model": "compiled model"}


def _figures(best: Row) -> list[str]:
    """Returns the cells on what ran on which devices."""
    length = "" if best.seq_len is None else f"{best.seq_len:,}"
    cap = f", held to {best.cap_gib:g} GiB" if best.cap_gib else ""
    precision = f"{best.precision}, {best.state_precision} states, {best.optimizer}"
    compressed = f", {best.compression}" if best.compression not in (None, "none") else ""
    return [f"{best.model}", f"{best.gpus}{cap}", length, f"{best.global_batch}", precision + compressed]


def _layout(best: Row, rows: list[Row]) -> list[str]:
    """Returns the cells on how it ran, how fast, and how the recipe's other runs ended."""
    outcomes = Counter(row.outcome for row in rows)
    stated = [str(word) for word in (best.attention, best.loss, best.compile) if word not in (None, "plain", "none")]
    kernels = [_KERNELS.get(word, word) for word in stated]
    checkpointing = [] if best.activation_ckpt == "none" else [f"checkpointing {best.activation_ckpt}"]
    offload = [] if best.offload in (None, "none") else [f"offload {best.offload}"]
    sharding = _SHARDING[str(best.engine), str(best.strategy)]
    words = [sharding, f"sync {best.grad_sync}", *kernels, *checkpointing, *offload]
    mark = "~" if best.derived else ""
    total = (best.tokens_per_s_per_gpu or 0) * (best.gpus or 1)
    memory = "" if best.peak_mem_gb is None else f"{best.peak_mem_gb * 1e9 / 2**30:.1f}"
    return [
        ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common()),
        ", ".join(words),
        f"{best.micro_batch} x {best.grad_accum}",
        f"{total:,.0f}{mark}",
        "" if best.tflops_per_gpu is None else f"{best.tflops_per_gpu:.0f}{mark}",
        memory,
    ]
