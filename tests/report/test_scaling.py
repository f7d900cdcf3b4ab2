"""Several numbers of devices compared: what their figures rest on is stated, and the picture shows all of them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from platform.report import scaling, scaling_rows
from platform.study.history import History
from platform.study.result.result import StudyResult
from tests.samples import RECIPE, header, layout, measurement
from trainers.records.journal import GateCurves, Line, Measured
from trainers.records.measurement import Measurement
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout

AT = "2026-01-01T00:00:00+00:00"


def _history(*measurements: Measurement, gate_losses: tuple[float, ...] = ()) -> History:
    """Returns a study on the measurements' number of devices; with losses of the first one's layout, its gate's too."""
    on = measurements[0].layout
    cluster = Cluster(device_kind="cuda", device="Made-up GPU", device_memory_gib=80.0, devices_per_node=on.world_size)
    lines: list[Line] = [header(f"s-{on.world_size}gpu", at=AT, cluster=cluster)]
    plain = layout(checkpointing="full", dp_shard=on.world_size)
    for gated_layout, losses in ((plain, (12.0, 11.0)), (on, gate_losses)):
        if gate_losses:
            shown: dict[str, Any] = {
                "recipe": RECIPE,
                "layout": gated_layout,
                "losses": losses,
                "is_reference": gated_layout == plain,
            }
            lines.append(GateCurves(at=AT, trial_id="t1", steps=2, sequences=32, grad_norms=(3.0, 2.0), **shown))
    return History([*lines, *(Measured(at=AT, measurement=point) for point in measurements)])


def _three() -> list[History]:
    """Returns one GPU by the search alone, two whose gate failed, and four that ran again and passed."""
    on_one = measurement(on=Layout(engine="ddp", dp_replicate=1), tokens_per_s=10000.0, step_time_derived=True)
    two = measurement(on=layout(dp_shard=2), tokens_per_s=22000.0)
    four = [measurement(tokens_per_s=speed, repeat=number) for number, speed in enumerate([46000.0, 45000.0, 44000.0])]
    return [_history(on_one), _history(two, gate_losses=(12.0, 13.0)), _history(*four, gate_losses=(12.0, 11.01))]


def test_a_figure_of_the_search_is_told_from_one_that_ran_again_and_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scaling.show(tmp_path, [StudyResult.of(history) for history in _three()], as_object=True, width=200)
    rows = json.loads(capsys.readouterr().out)["scaling"]
    assert [(row["gpus"], row["runs"], row["gate"]) for row in rows] == [
        (1, 0, None),
        (2, 0, "failed"),
        (4, 2, "passed"),
    ]
    scaling.show(tmp_path, [StudyResult.of(history) for history in _three()], as_object=False, width=200)
    shown = capsys.readouterr().out
    for line in (r"1 .* 100%  +-  +-  DDP", r"2 .* 110%  +-  +failed  FSDP2", r"4 .* 110%  +2  +passed  FSDP2"):
        assert re.search(rf"^ +{line}", shown, re.MULTILINE), line
    for note in ("~ derived", "runs: in fresh processes; -", "gate: - is a winner"):
        assert f"\n{note}" in shown
    scaling.show(tmp_path, [StudyResult.of(history) for history in _three()[2:]], as_object=False, width=200)
    assert "\nruns" not in (shown := capsys.readouterr().out) and "\ngate" not in shown and "\n~" not in shown
    assert (tmp_path / "scaling.csv").read_text().endswith(",s-4gpu,2,passed,\n")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_fits_and_names_each_layout_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    scaling.show(tmp_path, [StudyResult.of(history) for history in _three()], as_object=False, width=width)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("  /")) <= width
    if width < 120:
        assert "Fastest on 4: FSDP2 stage 3, sync last, eager, micro-batch 1 x 128" in lines


def test_the_picture_holds_its_points_and_says_which_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **options: Any) -> None:
        save(figure, *args, **options)
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    scaling.write_files(
        tmp_path, scaling_rows.rows([StudyResult.of(history) for history in [*_three(), _history_of_nothing()]]), "GPU"
    )
    above, below = figures[0].axes
    assert below.get_xlabel() == (
        "GPUs, below them GPU-days\n(no winner on 8; steps derived from fewer micro-steps on 1; no numerics gate on 1)"
    )
    assert [text.get_text() for text in below.texts] == ["100%", "110%", "110%"]
    for axes in (above, below):
        box = axes.get_window_extent()
        labels = [text for text in axes.texts if isinstance(text, Annotation)]
        assert len(labels) == 3
        for label in labels:
            assert label.get_window_extent().y1 <= box.y1, f"{label.get_text()} is cut off or outside"


def _history_of_nothing() -> History:
    cluster = Cluster(device_kind="cuda", device="Made-up GPU", device_memory_gib=80.0, devices_per_node=8)
    return History([header("s-8gpu", at=AT, cluster=cluster)])
