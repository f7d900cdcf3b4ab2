"""Measures how far predictions are off for software of which no run was at hand: `BLIND_SIGMA`.

    python -m benchmarks.blind_errors TABLE.csv TABLE.csv ...

Each table is predicted without any fact that was fitted to runs of its software, or of software with the same code.
The deviation is the likeliest one beside those that predictions have without it, where every table has the same weight
and, of a sweep with stalls, the rows near their cell's best alone count. It is 0 where a step's parts explain all.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.leave_one_table_out import runs_of, software_left_out
from platform.cost_model.columns import Array, from_rows
from platform.cost_model.predict import predict
from platform.validate.evaluation import score_table
from platform.validate.metrics import near_best

SIGMAS = np.arange(0.0, 0.3, 0.005)


def errors(path: Path) -> tuple[Array, Array]:
    """Returns (log(measured / predicted), the deviations without that of the stack) of a table's timed rows."""
    with software_left_out(path):
        runs = [run for run in runs_of(path) if run.step_time_s]
        scored = score_table(runs)
        columns = from_rows([run.values for run in runs])
        spread = np.maximum(predict(columns).sigma ** 2 - columns.software.stack_sigma**2, 1e-6)
    some = near_best(scored) if np.any(columns.software.stall_chance > 0) or "nanotron" in path.name else slice(None)
    return np.log(scored.measured_s / scored.predicted_s)[some], spread[some]


def blind_sigma(tables: Sequence[tuple[Array, Array]]) -> float:
    """Returns the likeliest deviation; residuals beyond 3 deviations count as 3, as those of unlike rows."""

    def likelihood(sigma: float) -> float:
        total = 0.0
        for residuals, variance in tables:
            wide = variance + sigma**2
            total -= float(np.mean(np.minimum(residuals**2 / wide, 9.0) + np.log(wide)))
        return total

    return float(max(SIGMAS, key=likelihood))


def main() -> None:
    """Prints the deviation, and each table's own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    paths = parser.parse_args().tables
    tables = [errors(path) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        print(f"{path.name}: {blind_sigma([table]):.3f} over {len(table[0])} rows")
    print(f"BLIND_SIGMA {blind_sigma(tables):.3f}")


if __name__ == "__main__":
    main()
