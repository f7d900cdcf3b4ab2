"""Shows every table's error before and after one constant, or one fact of a stack, has another value.

    python -m benchmarks.one_constant exchange.OVERLAP_SLOWDOWN=0.2 TABLE.csv TABLE.csv ...
    python -m benchmarks.one_constant stacks.nemo.overlaps_gather=false TABLE.csv ...

Tables are predicted zero-shot, as `python -m platform.validate` does. Modules read constants as they are imported, so
each value is used in a process of its own.
"""

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.cost_model import constants  # and nothing that reads them as it is imported


def figures(paths: Sequence[Path], name: str, value: Any) -> dict[str, tuple[float, float, float]]:
    """Returns (median error, mean error, share of the intervals that hold) by table; `name` is of a constant or fact
    that has `value` instead of its own, unless that is None.

    Raises:
        InputError: there is no such constant or fact.
    """
    if value is not None:
        entries, key = _place(name)
        entries[key] = {**entries.get(key, {}), "value": value}
    from benchmarks.leave_one_table_out import runs_of  # imported after the constant is set
    from platform.validate.evaluation import score_table
    from platform.validate.metrics import scores

    result: dict[str, tuple[float, float, float]] = {}
    for path in paths:
        scored = score_table(runs_of(path))
        of_table = scores(scored, range(len(scored.runs)), 0)
        result[path.name] = (
            of_table.step_time_ape_median or 0.0,
            of_table.step_time_ape_mean or 0.0,
            of_table.interval_coverage or 0.0,
        )
    return result


def _place(name: str) -> tuple[dict[str, Any], str]:
    """Returns the entries among which a constant `MODULE.NAME` is, or a fact `stacks.SOFTWARE.FACT`, and its key."""
    parts = name.split(".")
    try:
        if parts[0] == "stacks":
            from platform.cost_model import stacks  # imports formulas, whose constants are then read

            return stacks.table()["stacks"][parts[1]], parts[2]
        module = constants.table()[parts[0]]
        _ = module[parts[1]]
        return module, parts[1]
    except (KeyError, IndexError):
        raise InputError(f"{name!r} is no constant (MODULE.NAME) and no fact (stacks.SOFTWARE.FACT)") from None


def main() -> None:
    """Prints a line for each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("change", metavar="NAME=VALUE")
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    options = parser.parse_args()
    name, _, text = options.change.partition("=")
    try:
        _place(name)
        value = json.loads(text)
    except InputError as error:
        sys.exit(f"error: {error}")
    except json.JSONDecodeError:
        sys.exit(f"error: {text!r} is no value: write a number, true, false or JSON")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        before, after = pool.starmap(
            figures, [(options.tables, name, None), (options.tables, name, value)], chunksize=1
        )
    for table, was in before.items():
        words = ", ".join(f"{a:.1%} -> {b:.1%}" for a, b in zip(was, after[table], strict=True))
        print(f"{table}: median, mean, hold {words}")


if __name__ == "__main__":
    main()
