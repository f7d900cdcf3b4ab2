"""Computes how likely recorded measurements are under the guided search's prior, and with one deviation changed. Run

python -m benchmarks.prior_likelihood TABLE.csv [TABLE.csv ...]

The log marginal likelihood of the residuals log(measured / predicted), summed over the cells of the tables (Rasmussen
and Williams, "Gaussian Processes for Machine Learning", 2006, section 5.4.1). A deviation whose half or double is much
likelier is one to set anew.

Its figures: docs/lab/search.csv#guided-prior.
"""

import argparse
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from platform.cost_model import gp_inputs, regression  # pyright takes `from platform import` otherwise
from platform.searchers.guidance.points import make_points
from platform.validate.replaying.command import read_cells
from platform.validate.replaying.recorded import RecordedCell

LEAST = 4
"""Measured times that a cell needs to be counted."""
OF_PLACES = ("SWITCH_SIGMA", "DOUBLING_SIGMA", "PART_SHARE")
FACTORS = (0.5, 1.0, 2.0)


def main() -> None:
    """Prints a line for each deviation of the prior."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    cells = [read_cell for read_cell in read_cells(parser.parse_args().tables)[0] if len(_timed(read_cell)) >= LEAST]
    print(f"{sum(len(_timed(cell)) for cell in cells)} times of {len(cells)} cells; log marginal likelihood at")
    print(f"{'':16}{'prior':>7}" + "".join(f"{f'x {factor:g}':>9}" for factor in FACTORS))
    for name, value, likelihoods in _changed(cells):
        print(f"{name:16}{value:7.3f}" + "".join(f"{likelihood:9.1f}" for likelihood in likelihoods))


def _changed(cells: list[RecordedCell]) -> Iterator[tuple[str, float, list[float]]]:
    for name in OF_PLACES:
        usual = getattr(gp_inputs, name)
        likelihoods: list[float] = []
        for factor in FACTORS:
            setattr(gp_inputs, name, usual * factor)
            likelihoods.append(_likelihood(cells, regression.TIME))
        setattr(gp_inputs, name, usual)
        yield name.lower(), usual, likelihoods
    for field in dataclasses.fields(regression.Prior):
        usual = getattr(regression.TIME, field.name)
        others = [dataclasses.replace(regression.TIME, **{field.name: usual * factor}) for factor in FACTORS]
        yield field.name, usual, [_likelihood(cells, other) for other in others]
    usual, likelihoods = regression.LENGTH, list[float]()
    for factor in FACTORS:
        regression.LENGTH = usual * factor
        likelihoods.append(_likelihood(cells, regression.TIME))
    regression.LENGTH = usual
    yield "length", usual, likelihoods


def _likelihood(cells: list[RecordedCell], prior: regression.Prior) -> float:
    total = 0.0
    for cell in cells:
        index = _timed(cell)
        measured = [math.log(choice.tokens_per_step / (choice.tokens_per_s or 1.0)) for choice in cell.choices]
        points = make_points(cell.problem(0))
        residuals = np.array(measured)[index] - points.log_step_s[index]
        total += regression.learn(points, index, residuals, prior).likelihood
    return total


def _timed(cell: RecordedCell) -> gp_inputs.Index:
    return np.array([place for place, choice in enumerate(cell.choices) if choice.tokens_per_s], dtype=np.int64)


if __name__ == "__main__":
    main()
