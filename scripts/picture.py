"""Draws the picture of docs/lab/2026-11-22.md from a committed table: `.venv/bin/python scripts/picture.py`."""

import argparse
import csv
import dataclasses
import hashlib
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "measurements" / "bloom7b-1xH200.csv"
PICTURE = ROOT / "docs" / "pictures" / "bloom7b-1xH200.png"
TITLE = "BLOOM-7b1 on one H200: training speed by layout"
UNDER = "sequence 2048, global batch 512, AdamW, bf16 compute over fp32 states"

LAYOUTS = {
    ("ddp", "ddp"): "DDP",
    ("fsdp", "zero2"): "FSDP2 stage 2",
    ("fsdp", "fsdp"): "FSDP2 stage 3",
    ("deepspeed", "ddp"): "DeepSpeed ZeRO-0",
    ("deepspeed", "zero1"): "DeepSpeed ZeRO-1",
    ("deepspeed", "zero2"): "DeepSpeed ZeRO-2",
    ("deepspeed", "zero3"): "DeepSpeed ZeRO-3",
}
COLORS = {"ok": "#0f766e", "thrash": "#e9b44c", "oom": "#b91c1c"}
INK, FAINT = "#1f2937", "#6b7280"
BAR = 0.36


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A batch point that was tried."""

    layout: str
    checkpointing: str
    micro_batch: int
    outcome: str
    tokens_per_s: float | None
    confirming: bool


def points(table: Path) -> list[Point]:
    """Returns the points of the table that ran."""
    with table.open(newline="", encoding="utf-8") as file:
        return [
            Point(
                layout=LAYOUTS[row["engine"], row["strategy"]],
                checkpointing=row["activation_ckpt"],
                micro_batch=int(row["micro_batch"]),
                outcome=row["outcome"],
                tokens_per_s=float(row["tokens_per_s_per_gpu"]) if row["tokens_per_s_per_gpu"] else None,
                confirming="repeat" in row["notes"],
            )
            for row in csv.DictReader(file)
            if row["outcome"] != "skipped"
        ]


def fingerprint(table: Path) -> str:
    """Returns a hash that the picture carries, so that a test detects a changed table."""
    return hashlib.sha256(table.read_bytes()).hexdigest()


def draw(points: list[Point], axes: Axes) -> None:
    """Draws bars for runs with checkpointing, the best layout on top, and beside them the outcomes without it."""
    with_it = [point for point in points if point.checkpointing == "full"]
    without = [point for point in points if point.checkpointing == "none"]
    best = {point.layout: max(p.tokens_per_s or 0 for p in with_it if p.layout == point.layout) for point in with_it}
    rows = {layout: row for row, layout in enumerate(sorted(best, key=lambda layout: best[layout]))}
    largest = max(best.values())
    winner = max((p.tokens_per_s or 0, (p.layout, p.micro_batch)) for p in with_it if p.confirming)[1]
    for drawn_point in with_it:
        assert drawn_point.tokens_per_s is not None
        two = sum(p.layout == drawn_point.layout and not p.confirming for p in with_it) > 1
        y = rows[drawn_point.layout] + ((-BAR if drawn_point.micro_batch > 1 else BAR) / 2 if two else 0)
        if drawn_point.confirming:
            axes.plot(drawn_point.tokens_per_s, y, "D", color="white", markeredgecolor=INK, markersize=5, zorder=3)
            continue
        axes.barh(y, drawn_point.tokens_per_s, BAR * 0.92, color=COLORS[drawn_point.outcome], zorder=2)
        is_winner = (drawn_point.layout, drawn_point.micro_batch) == winner
        words, weight = (
            f"micro-batch {drawn_point.micro_batch}{', the winner' if is_winner else ''}",
            "bold" if is_winner else "normal",
        )
        ink = "white" if drawn_point.outcome == "ok" else INK
        axes.text(70, y, words, color=ink, va="center", fontsize=8, fontweight=weight, zorder=4)
        axes.text(
            drawn_point.tokens_per_s + 80, y, f"{drawn_point.tokens_per_s:,.0f}", color=INK, va="center", fontsize=9
        )
    x = largest * 1.24
    axes.text(x, len(rows) - 0.42, "without\ncheckpointing", color=FAINT, ha="center", va="bottom", fontsize=9)
    for drawn_point in without:
        words = f"✕ micro-batch {drawn_point.micro_batch}"
        axes.text(
            x, rows[drawn_point.layout], words, color=COLORS[drawn_point.outcome], ha="center", va="center", fontsize=9
        )
    axes.set_yticks(list(rows.values()), list(rows), color=INK, fontsize=10)
    axes.set_xlim(0, largest * 1.38)
    axes.set_ylim(-0.55, len(rows) - 0.45)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    figure, axes = plt.subplots(figsize=(9, 4.6), dpi=160)
    draw(points(TABLE), axes)
    axes.set_xticks(range(0, 5001, 1000), [f"{tick:,}" for tick in range(0, 5001, 1000)], color=FAINT, fontsize=9)
    axes.set_xlabel("tokens/s per GPU, with activation checkpointing", color=FAINT, fontsize=9, loc="left")
    axes.tick_params(length=0)
    axes.xaxis.grid(True, color="#e5e7eb", zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    figure.text(0.012, 0.955, TITLE, color=INK, fontsize=13, fontweight="bold")
    figure.text(0.012, 0.908, UNDER, color=FAINT, fontsize=9.5)
    handles = [
        Patch(color=COLORS["ok"], label="ok"),
        Patch(color=COLORS["thrash"], label="thrash: allocator retries or no head-room, may not win"),
        Line2D([], [], marker="x", color="none", markeredgecolor=COLORS["oom"], label="out of memory"),
        Line2D([], [], marker="D", color="none", markerfacecolor="white", markeredgecolor=INK, label="confirming run"),
    ]
    figure.legend(handles=handles, loc="lower left", ncols=4, frameon=False, fontsize=8.5, labelcolor=INK)
    figure.subplots_adjust(left=0.175, right=0.99, top=0.80, bottom=0.185)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, metadata={"Table": fingerprint(TABLE), "Software": None})
    print(PICTURE)


if __name__ == "__main__":
    main()
