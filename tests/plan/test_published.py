"""Plans beside published runs: at their degrees as fast as they were, and no slower where degrees are free."""

import json
from pathlib import Path
from typing import Any

import pytest

import search_spaces
from platform.cost_model import stacks
from platform.cost_model.hardware import find_cluster
from platform.plan.best_layouts import best_plan
from platform.plan.offers import with_engines_of
from tests.plan.published_runs import RUNS, PublishedRun

_WHOLE = {"tp": 1, "pp": 1, "cp": 1}
SOURCED = {name: run for name, run in RUNS.items() if not run.recalled}


def tokens_per_s(run: PublishedRun, folder: Path, *, free: bool) -> float | None:
    """Returns the tokens a second and device of the plan's first layout, at the published degrees unless they are
    `free`; None where no layout is planned.
    """
    (folder / "config.json").write_text(json.dumps(run.config))
    stated = {"seq_len": run.seq_len, "global_batch": run.global_batch, **({} if free else {**_WHOLE, **run.degrees})}
    cluster = stacks.with_software(find_cluster(run.cluster), run.software)
    try:
        space = with_engines_of(search_spaces.load(str(folder)), run.software).with_changes(
            [f"{axis}={value}" for axis, value in stated.items()]
        )
        best = best_plan(space, space.recipe, cluster, top=1).best
    except ValueError:
        return None
    return best[0].tokens_per_s / cluster.num_devices if best else None


def test_published_degrees_are_accepted_and_eight_of_ten_are_within_15_percent(tmp_path: Path) -> None:
    speeds = {name: tokens_per_s(run, tmp_path, free=False) for name, run in RUNS.items()}
    refused = [name for name, speed in speeds.items() if speed is None]
    assert not refused
    errors = {name: abs((speeds[name] or 0) / run.tokens_per_s - 1) for name, run in SOURCED.items()}
    assert len(errors) == 10 and sum(error <= 0.15 for error in errors.values()) >= 8, errors


def _parameter(name: str, run: PublishedRun) -> Any:
    """Returns the run as a parameter: plans of many layouts take seconds of a processor."""
    return pytest.param(run, id=name, marks=[pytest.mark.heavy] if find_cluster(run.cluster).num_devices > 500 else [])


@pytest.mark.parametrize("run", [_parameter(name, run) for name, run in RUNS.items()])
def test_free_degrees_are_no_slower_than_the_published_ones(run: PublishedRun, tmp_path: Path) -> None:
    published, free = (tokens_per_s(run, tmp_path, free=free) for free in (False, True))
    assert published is not None and free is not None and free >= published
