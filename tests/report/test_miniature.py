"""Reports on a miniature: its own figures, marked, and nothing about the training run that it stands in for."""

import json
import re
from pathlib import Path

import pytest

from platform.report import scaling
from platform.report.rows import tables
from platform.report.show import show
from platform.study.history import History
from platform.study.result.result import StudyResult
from tests.samples import header, measurement, miniature
from trainers.records.journal import Measured
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

AT = "2026-01-01T00:00:00+00:00"
WORKERS = Cluster(device_kind="cpu", device="Made-up CPU", device_memory_gib=4.0, devices_per_node=2)


def _history(recipe: Recipe) -> History:
    on = Layout(engine="ddp", dp_replicate=2)
    measured = (measurement(recipe=recipe, on=on, micro_batch=size, tokens_per_s=1000.0 * size) for size in (1, 2))
    is_small = recipe.model.miniature_of is not None
    first = header(at=AT, recipes=(recipe,), cluster=WORKERS, price_per_gpu_h=2.0, miniature=is_small)
    return History([first, *(Measured(at=AT, measurement=point) for point in measured)])


@pytest.mark.parametrize("small", [True, False])
def test_days_and_cost_of_the_token_budget_are_not_told(capsys: pytest.CaptureFixture[str], small: bool) -> None:
    """Checks that days and cost are shown for the model itself: the test looks for the same words that are left out."""
    history = _history(miniature() if small else measurement().recipe)
    show(StudyResult.of(history), [], as_object=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert ("days for" in shown, "100B" in shown, "a device-hour" in shown) == (not small,) * 3
    assert (
        f"micro-batch{' of the miniature' if small else ''}, all else equal:"
        " 2 is 100.0% faster than 1 (1 pair, not resolved)." in shown
    )
    assert "worker-days" in shown and "GPU" not in shown.replace("Made-up GPU", "")
    show(StudyResult.of(history), [], as_object=True)
    won = json.loads(capsys.readouterr().out)["winner"]
    assert (won["days"] is None, won["cost"] is None) == (small, small) and won["tokens_per_s"] == 2000.0
    assert all((row["days"] is None) == small for row in tables(StudyResult.of(history))["measurements.json"])


def test_numbers_of_devices_are_compared_by_speed_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scaling.show(tmp_path, [StudyResult.of(_history(miniature()))], as_object=False, width=160)
    shown = capsys.readouterr().out
    assert "MINIATURE of bloom-7b1" in shown and "efficiency" in shown and "2,000" in shown
    assert "days" not in shown and "cost" not in shown
    assert [path.name for path in tmp_path.iterdir()] == ["scaling.csv"]
    scaling.show(tmp_path, [StudyResult.of(_history(measurement().recipe))], as_object=False, width=160)
    shown = capsys.readouterr().out
    assert re.search(r" days for +worker- .*\n.* 100B +days ", shown) and "cost" in shown
    assert (tmp_path / "scaling.png").exists()
