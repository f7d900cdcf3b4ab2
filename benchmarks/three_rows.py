"""Shows in which cells of tables three measured rows make the predictions of the others worse, software left out.

    python -m benchmarks.three_rows TABLE.csv TABLE.csv ...

Each cell of 10 configurations and more is predicted zero-shot and with 3 rows measured, as the guided search would
choose them. Errors are of the rows that were not measured. It prints the cells whose mean error or regret grows by more
than `TOLERANCE`, and the number of all. A mean over ten rows moves by a point where a correction of a few percent has
the wrong sign, which no three rows can exclude; a median may move where the mean does not.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.leave_one_table_out import LARGE, MEASURED, runs_of, software_left_out
from platform.validate.evaluation import cells_of, score_table
from platform.validate.metrics import regret
from platform.validate.published_run import PublishedRun

TOLERANCE = 0.02
"""Growth of a cell's mean error or regret that counts as none."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CellChange:
    """Errors of one cell's rows that were not measured, before and after three others were."""

    cell: tuple[str, ...]
    median: tuple[float, float]
    mean: tuple[float, float]
    regret: tuple[float, float]

    @property
    def is_worse(self) -> bool:
        """Whether the mean error or the regret grew by more than `TOLERANCE`."""
        return any(after > before + TOLERANCE for before, after in (self.mean, self.regret))

    def __str__(self) -> str:
        figures = (("median", self.median), ("mean", self.mean), ("regret", self.regret))
        return ", ".join(self.cell[:5]) + ": " + ", ".join(f"{name} {a:.1%} -> {b:.1%}" for name, (a, b) in figures)


def changes(runs: Sequence[PublishedRun]) -> list[CellChange]:
    """Returns the change of each large cell of merged `runs` that has rows to judge by after the measured ones."""
    result: list[CellChange] = []
    for cell, rows in cells_of(runs).items():
        some = [runs[row] for row in rows]
        if len(some) < LARGE:
            continue
        before, after = score_table(some), score_table(some, num_calibrate=MEASURED)
        judged = np.isfinite(after.measured_s) & ~after.used
        regrets = regret(before, range(len(some))), regret(after, range(len(some)))
        if not judged.any() or None in regrets:
            continue
        errors = [np.abs(scored.predicted_s / scored.measured_s - 1)[judged] for scored in (before, after)]
        result.append(
            CellChange(
                cell=cell,
                median=(float(np.median(errors[0])), float(np.median(errors[1]))),
                mean=(float(errors[0].mean()), float(errors[1].mean())),
                regret=(float(regrets[0] or 0.0), float(regrets[1] or 0.0)),
            )
        )
    return result


def main() -> None:
    """Prints the cells that are worse, and a line for each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    for path in parser.parse_args().tables:
        with software_left_out(path):
            every = changes(runs_of(path))
        worse = [change for change in every if change.is_worse]
        for change in worse:
            print(f"  {change}")
        print(f"{path.name}: {len(worse)} of {len(every)} cells are worse")


if __name__ == "__main__":
    main()
