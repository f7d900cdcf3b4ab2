"""Measures how far predictions are off for published runs of each kind that is far from other evidence.

    python -m benchmarks.distant_errors          prints `DISTANT_SIGMA` of platform/cost_model/constants.json

The runs are those of the published tables among the tests. The deviation of a kind is the root mean square of
log(measured / predicted) over its runs, zero-shot: `nodes` has those on more than eight nodes, `degrees` those with
tensor, pipeline and context parallelism together, and `family` all of them, each family of GPUs with the mean rates of
the other families that were calibrated.
"""

import argparse
import contextlib
import json
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np

from platform.cost_model.columns import Array, Columns, from_rows
from platform.cost_model.evidence import all_degrees, many_nodes
from platform.cost_model.hardware import calibrated_families, catalogue
from platform.cost_model.predict import predict
from platform.validate.published_run import PublishedRun, interpret
from platform.validate.rows import read_rows

TABLES = ("published_bf16.csv", "published_fp8.csv", "megatron_ten_rows.csv")
_FOLDER = Path(__file__).parents[1] / "tests" / "cost_model" / "tables"
_RATES = ("matmul_share", "flash_share")


def runs() -> list[PublishedRun]:
    """Returns the timed runs of the tables."""
    every = [interpret(row) for name in TABLES for row in read_rows(_FOLDER / name)]
    return [run for run in every if run.step_time_s]


def errors(of: Sequence[PublishedRun]) -> tuple[Columns, Array]:
    """Returns the rows of runs, and log(measured / predicted) of each."""
    columns = from_rows([run.values for run in of])
    return columns, np.log([run.step_time_s or np.nan for run in of]) - np.log(predict(columns).step.total_s)


@contextlib.contextmanager
def rates_of_others(family: str) -> Generator[None]:
    """Gives the family's devices, in its context, the mean rates of the other calibrated families."""
    devices = catalogue()["devices"].values()
    calibrated = [entry for entry in devices if "sigma" not in entry and entry["link"] != "shared_memory"]
    members = [entry for entry in devices if entry["architecture"] == family]
    before = [{rate: entry[rate] for rate in _RATES} for entry in members]
    for rate in _RATES:
        by_family: dict[str, list[float]] = {}
        for entry in calibrated:
            by_family.setdefault(entry["architecture"], []).append(np.log(entry[rate]))
        mean = float(np.exp(np.mean([np.mean(logs) for name, logs in by_family.items() if name != family])))
        for entry in members:
            entry[rate] = mean
    try:
        yield
    finally:
        for entry, rates in zip(members, before, strict=True):
            entry.update(rates)


def measured() -> dict[str, tuple[float, int]]:
    """Returns the deviation and the number of runs of each kind."""
    every = runs()
    columns, error = errors(every)
    of_family: list[Array] = []
    for family in sorted(calibrated_families() & {run.cluster.device.architecture for run in every}):
        with rates_of_others(family):
            again = [run for run in runs() if run.cluster.device.architecture == family]
            of_family.append(errors(again)[1])
    kinds = {
        "family": np.concatenate(of_family),
        "nodes": error[many_nodes(columns)],
        "degrees": error[all_degrees(columns)],
    }
    return {kind: (float(np.sqrt(np.mean(values**2))), len(values)) for kind, values in kinds.items()}


def main() -> None:
    """Prints the deviations as JSON, and the number of runs of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    deviations = measured()
    print(json.dumps({kind: round(sigma, 3) for kind, (sigma, _) in deviations.items()}))
    print("; ".join(f"{kind}: {count} runs" for kind, (_, count) in deviations.items()))


if __name__ == "__main__":
    main()
