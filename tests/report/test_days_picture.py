"""Labels of the picture of days: none lies on a line, on the band or outside of the picture."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from platform.report.days_picture import Days, draw_days

SLOWER = [Days(num_devices=n, days=90 / n**0.8, low_days=80 / n**0.8, high_days=99 / n**0.8) for n in (1, 2, 4, 8)]
FASTER = [Days(num_devices=n, days=90 / n**1.1, low_days=90 / n**1.1, high_days=90 / n**1.1) for n in (1, 2, 4)]


@pytest.mark.parametrize("points", (SLOWER, FASTER), ids=("slower", "faster than in proportion"))
def test_labels_collide_with_nothing(points: list[Days], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []

    def keep(figure: Figure, *_: object, **__: object) -> None:
        figure.draw_without_rendering()
        drawn.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    note = "steps derived from fewer micro-steps on 1, 2, 4; no numerics gate on 1, 2"
    draw_days(points, tmp_path / "days.png", title="a model", line="line", band="band", note=note)
    (figure,) = drawn
    for axes in figure.axes:
        labels = [text.get_window_extent() for text in axes.texts if isinstance(text, Annotation)]
        assert len(labels) == len(points)
        curves = [np.asarray(line.get_xydata()) for line in axes.lines]
        curves += [np.asarray(band.get_paths()[0].vertices) for band in axes.collections]
        for curve in curves:
            places = axes.transData.transform(curve)
            steps = np.concatenate([np.linspace(a, b, 200) for a, b in itertools.pairwise(places)])
            assert not any(label.contains(x, y) for label in labels for x, y in steps)
        assert axes.xaxis.label.get_window_extent().x0 >= 0
        assert axes.xaxis.label.get_window_extent().x1 <= figure.bbox.x1
