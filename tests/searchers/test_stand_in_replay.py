"""A recorded table as a user's own command: a model that stands in for it makes the search no longer."""

from pathlib import Path
from statistics import fmean

from benchmarks.without_predictions import search
from platform.validate.replaying.command import read_cells

TABLE = Path(__file__).parents[2] / "docs" / "measurements" / "bloom7b-4xH200.csv"


def test_a_model_needs_no_more_trials_than_measurements_alone() -> None:
    (cell,) = [cell for cell in read_cells([TABLE])[0] if len(cell.choices) >= 10]
    alone, with_model = (
        [search(cell, "guided", seed, stands_in=stands_in)[0] for seed in range(5)] for stands_in in (False, True)
    )
    assert max(with_model) <= fmean(alone), (alone, with_model)
