"""The page of the fastest runs in each committed table of measurements, a row per model and precision."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from platform.validate.facts import mlp_of
from scripts.pages.committed import read_table

TABLES = Path(__file__).resolve().parents[2] / "docs" / "measurements"
_TOP = """# Measured on GPUs

The fastest `ok` run of each model and precision in each table of [docs/measurements](../measurements/), by total
tokens/s; a table's name ends with its GPUs. A recipe is a model, length x batch and what differs from bf16 over fp32
states with AdamW; gradients are reduced at the last micro-step unless stated. `+`: chunked loss and compiled blocks;
`~`: derived from a step of two or three micro-steps. Which runs passed the numerics gate, and what was learned:
[measurements.md](../measurements.md).
"""
_COLUMNS = ("table", "recipe", "layout", "MBS x GAS", "tokens/s", "GiB")


def page() -> str:
    lines = [_TOP, f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for path in sorted(TABLES.glob("*.csv")):
        lines += (f"| {' | '.join(cells)} |" for cells in _cells(path))
    return "\n".join(lines) + "\n"


def _cells(path: Path) -> Iterator[list[str]]:
    """Yields a row for each model and precision in a table that has at least one `ok` run."""
    timed = [row for row in read_table(path) if row.outcome == "ok"]
    timed.sort(key=lambda row: (row.tokens_per_s_per_gpu or 0) * (row.gpus or 1), reverse=True)
    fastest: dict[tuple[str | None, ...], SimpleNamespace] = {}
    for row in timed:
        fastest.setdefault((row.model, row.precision, row.state_precision, row.optimizer), row)
    for row in fastest.values():
        yield [f"[{path.stem}](../measurements/{path.name})", _recipe(row), *_layout(row)]


_SHARDING = {
    ("fsdp", "zero2"): "FSDP2 stage 2", ("fsdp", "fsdp"): "FSDP2 stage 3", ("fsdp", "hsdp"): "FSDP2 hybrid",
    ("ddp", "ddp"): "DDP", ("deepspeed", "ddp"): "ZeRO-0", ("deepspeed", "zero1"): "ZeRO-1",
    ("deepspeed", "zero2"): "ZeRO-2", ("deepspeed", "zero3"): "ZeRO-3",
}  # fmt: skip
"""Common name by engine and the tables' word for the kind of sharding."""
_KERNELS = {"quack": "quack loss", "chunked": "chunked", "block": "compiled", "model": "compiled whole"}


def _recipe(best: SimpleNamespace) -> str:
    """Returns the cell on the mathematics, without the usual values."""
    cap = [f"held to {best.cap_gib:g} GiB"] if best.cap_gib else []
    usual = ("bf16", "fp32 states", "adamw", "none compression")
    compression = f"{best.compression or 'none'} compression"
    stated = (best.precision, f"{best.state_precision} states", best.optimizer, compression)
    unusual = [str(word) for word in stated if word and word not in usual]
    return ", ".join([f"{best.model}", f"{best.seq_len} x {best.global_batch}", *unusual, *cap])


def _layout(best: SimpleNamespace) -> list[str]:
    """Returns the cells on layout, batch point, speed and memory."""
    mlp = "quack MLP" if mlp_of(best.notes or "") == "quack" else None
    words = (best.attention, mlp, best.loss, best.compile)
    kernels = [_KERNELS.get(str(word), str(word)) for word in words if word not in (None, "plain", "none")]
    if kernels[1:] == ["chunked", "compiled"]:
        kernels = [f"{kernels[0]}+"]
    checkpointing = [] if best.activation_ckpt == "none" else [f"{best.activation_ckpt} checkpointing"]
    offload = [] if best.offload in (None, "none") else [f"offload {best.offload}"]
    sync = [f"sync {best.grad_sync}"] if best.grad_sync == "every" else []
    words = [_SHARDING[str(best.engine), str(best.strategy)], *sync, *kernels, *checkpointing, *offload]
    mark = "~" if best.derived else ""
    total = (best.tokens_per_s_per_gpu or 0) * (best.gpus or 1)
    memory = "" if best.peak_mem_gb is None else f"{best.peak_mem_gb * 1e9 / 2**30:.1f}"
    return [
        ", ".join(words),
        f"{best.micro_batch} x {best.grad_accum}",
        f"{total:,.0f}{mark}",
        memory,
    ]
