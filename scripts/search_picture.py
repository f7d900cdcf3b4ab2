"""Draws the guided search beside random search over committed tables: `.venv/bin/python -m scripts.search_picture`."""

import argparse
import hashlib
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from platform.validate.replaying.command import read_cells
from platform.validate.replaying.play import make
from platform.validate.replaying.recorded import RecordedCell

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "measurements"
CELLS = (
    (MEASURED / "gpt2-exhaustive-1xH200.csv",),
    (MEASURED / "bloom7b-1xH200.csv", MEASURED / "bloom7b-kernels-1xH200.csv"),
    (MEASURED / "bloom7b-4xH200.csv", MEASURED / "bloom7b-kernels-4xH200.csv"),
)
"""Tables of each panel, whose rows belong to one cell."""
PICTURE = ROOT / "docs" / "pictures" / "guided-and-random.png"
SEEDS = 200
INK, FAINT, GUIDED, RANDOM = "#1f2937", "#6b7280", "#0f766e", "#b45309"


def best_so_far(cell: RecordedCell, name: str, seed: int) -> list[float]:
    """Returns, after each trial, the best throughput so far as a share of the cell's best, until nothing is left."""
    searcher = make(name, cell, seed)
    best, shares = 0.0, list[float]()
    while (choice := searcher.suggest()) is not None:
        best = max(best, (choice.tokens_per_s or 0.0) / cell.best_tokens_per_s)
        shares.append(best)
        searcher.update(choice, [choice])
    # Points that the search left out, because they need more memory than one that failed, would not be better.
    return shares + [best] * (len(cell.choices) - len(shares))


def fingerprint() -> str:
    """Returns a hash that the picture carries, so that a test detects changed tables."""
    return hashlib.sha256(b"".join(table.read_bytes() for tables in CELLS for table in tables)).hexdigest()


def draw(cell: RecordedCell, axes: Axes) -> None:
    """Draws both searches over the trials of one cell."""
    trials = np.arange(1, len(cell.choices) + 1)
    random = np.array([best_so_far(cell, "random", seed) for seed in range(SEEDS)])
    low, high = np.percentile(random, [10, 90], axis=0)
    axes.fill_between(trials, low, high, step="post", color=RANDOM, alpha=0.15, linewidth=0)
    axes.step(trials, random.mean(axis=0), where="post", color=RANDOM, linewidth=1.8)
    guided = best_so_far(cell, "guided", 0)
    axes.step(trials, guided, where="post", color=GUIDED, linewidth=2.4)
    first = next(number for number, share in enumerate(guided, 1) if share >= 0.98)
    axes.plot(first, guided[first - 1], "o", color=GUIDED, markersize=8, zorder=3)
    label = f"guided: within 2 % of the best after {first} trial{'' if first == 1 else 's'}"
    axes.text(0, 1.13, label, color=GUIDED, weight="bold", fontsize=9.5, transform=axes.transAxes)
    mean = float(np.mean([next(n for n, share in enumerate(row, 1) if share >= 0.98) for row in random]))
    label = f"random: after {mean:.1f} on average (shaded: 8 in 10)"
    axes.text(0, 1.04, label, color=RANDOM, fontsize=9.5, transform=axes.transAxes)
    model, gpu, gpus, seq_len, global_batch = cell.name
    axes.set_title(f"{model}, {gpus} x {gpu}: {len(trials)} configurations", color=INK, fontsize=10, loc="left", pad=34)
    axes.set_xlabel(f"trials (length {seq_len}, global batch {global_batch})", color=FAINT, fontsize=9, loc="left")
    axes.set_xlim(0.5, len(trials))
    axes.set_ylim(0, 1.04)
    axes.set_yticks([0, 0.5, 0.98], ["0", "50 %", "98 %"], color=FAINT, fontsize=9)
    axes.tick_params(length=0, colors=FAINT)
    axes.grid(True, axis="y", color="#e5e7eb")
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    figure, panels = plt.subplots(1, len(CELLS), figsize=(12, 3.9), dpi=160, sharey=True)
    for tables, axes in zip(CELLS, panels, strict=True):
        (cell,) = read_cells(tables)[0]
        draw(cell, axes)
    figure.text(
        0.012,
        0.94,
        "The best found so far, of the best there is: guided search beside random",
        color=INK,
        fontsize=12,
        weight="bold",
    )
    figure.subplots_adjust(left=0.05, right=0.99, top=0.72, bottom=0.13, wspace=0.08)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, metadata={"Table": fingerprint(), "Software": None})
    print(PICTURE)


if __name__ == "__main__":
    main()
