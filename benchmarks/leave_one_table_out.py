"""Do the cost model's constants carry over? Fits one scale of step times on all tables but one and scores that one.

    python -m benchmarks.leave_one_table_out TABLE.csv TABLE.csv ...

If the constants had been fitted to a table, the scale found on the others would be far from its own.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from platform.common.errors import InputError
from platform.cost_model.columns import from_rows
from platform.cost_model.predict import predict
from platform.cost_model.rows import read_rows
from platform.cost_model.scoring import merged
from platform.cost_model.table import Run, interpret


def residuals(path: Path) -> np.ndarray:
    """log(measured / predicted) of every timed configuration of a table."""
    runs: list[Run] = []
    for row in read_rows(path):
        try:
            runs.append(interpret(row))
        except ValueError:
            continue
    runs = [run for run in merged(runs) if run.step_time_s is not None]
    predicted = predict(from_rows([run.values for run in runs])).step.total_s
    return np.log(np.array([run.step_time_s for run in runs]) / predicted)


def main() -> None:
    """Prints, for each table, its error zero-shot and with the other tables' scale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    try:
        tables = {path.stem: residuals(path) for path in parser.parse_args().tables}
    except InputError as error:
        sys.exit(f"error: {error}")
    for name, own in tables.items():
        others = float(np.mean([np.median(each) for other, each in tables.items() if other != name]))
        plain, scaled = (float(np.median(np.abs(np.expm1(shift - own)))) for shift in (0.0, others))
        print(
            f"{name}: median error {100 * plain:.1f} % as it stands, {100 * scaled:.1f} % with the others' scale"
            f" {np.exp(others):.3f} (its own would be {np.exp(np.median(own)):.3f})"
        )


if __name__ == "__main__":
    main()
