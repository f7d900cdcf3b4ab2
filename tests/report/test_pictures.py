"""The two pictures, by the artists that are drawn."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from platform.report import pictures
from tests.samples import CLUSTER, layout, measurement, miniature, oom, result_of, skipped
from trainers.records.measurement import Outcome
from trainers.spec.layout import Layout

POINTS = (
    measurement(tokens_per_s=30000.0),
    measurement(micro_batch=2, tokens_per_s=35000.0, step_time_derived=True),
    measurement(micro_batch=2, tokens_per_s=33000.0, repeat=1),
    measurement(on=layout(zero_stage=2), tokens_per_s=36000.0, outcome=Outcome.THRASH, reason="3 allocator retries"),
    oom(on=Layout(engine="ddp", dp_replicate=4), micro_batch=4),
    measurement(on=layout(prefetch=3), micro_batch=4, tokens_per_s=16500.0, outcome=Outcome.SLOW, reason="stopped"),
    measurement(on=layout(prefetch=2), tokens_per_s=None, outcome=Outcome.HUNG, reason="silent"),
    measurement(on=layout(prefetch=1), tokens_per_s=float("nan"), outcome=Outcome.DIVERGED, reason="nan"),
    skipped(micro_batch=8),
)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Returns the figures that are saved, in order."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def test_every_point_is_drawn_as_what_became_of_it(tmp_path: Path, drawn: list[Figure]) -> None:
    written = pictures.draw(result_of(POINTS).measured[0], CLUSTER, tmp_path, "-x")
    assert [path.name for path in written] == ["speed-memory-x.png", "heat-map-x.png"]
    for path in written:
        with Image.open(path) as picture:
            assert min(picture.size) > 300
    memory, heat = (figure.axes[0] for figure in drawn)
    words = sorted(text.get_text() for text in heat.texts)
    assert words == [
        "(16,500)",
        "30,000",
        "33,000",
        "36,000\nthrash",
        "OOM",
        "diverged",
        "hung",
        "skipped",
    ]  # 33,000: the run that counts
    assert heat.get_yticklabels()[0].get_text() == layout().label
    shades = [patch.get_facecolor() for patch in heat.patches if patch.get_fill()]
    slow = (*to_rgb(pictures.COLORS[Outcome.OK]), pytest.approx(0.15 + 0.85 * 0.5**3))
    assert any(shade == slow for shade in shades), "at half of the best speed"
    crosses: list[Any] = [line.get_xydata() for line in memory.lines if line.get_marker() == "x"]
    assert [tuple(place[0]) for place in crosses] == [(82.5, 0.0)]  # what it held and asked for
    assert "bloom-7b1" in _words(drawn[0])


def test_a_miniature_says_so(tmp_path: Path, drawn: list[Figure]) -> None:
    pictures.draw(
        result_of([measurement(recipe=miniature(), on=Layout(engine="ddp", dp_replicate=2))]).measured[0],
        CLUSTER,
        tmp_path,
    )
    assert all("MINIATURE of bloom-7b1" in _words(figure) for figure in drawn) and len(drawn) == 2


def test_a_few_layouts_that_never_ran_are_shown_and_the_others_counted(tmp_path: Path, drawn: list[Figure]) -> None:
    crashed = oom(on=Layout(engine="ddp", dp_replicate=4), micro_batch=4)
    never = [skipped(on=layout(prefetch=number), micro_batch=8) for number in range(1, 33)]
    pictures.draw(result_of([*never, measurement(), crashed]).measured[0], CLUSTER, tmp_path)
    heat = drawn[1].axes[0]
    labels = [label.get_text() for label in heat.get_yticklabels()]
    assert labels == [layout().label, crashed.layout.label, *(point.layout.label for point in never[:3])]
    assert "left out: 29 layouts that never ran" in _words(drawn[1])


@pytest.mark.parametrize("number", [1, 5, 60])
def test_all_words_of_a_heat_map_stand_inside_of_it_and_apart(tmp_path: Path, drawn: list[Figure], number: int) -> None:
    wordy = {"checkpointing": "selective", "attention": "sdpa", "loss": "chunked", "compile": "block"}
    pictures.draw(
        result_of([measurement(on=layout(prefetch=prefetch, **wordy)) for prefetch in range(number)]).measured[0],
        CLUSTER,
        tmp_path,
    )
    heat = drawn[1]
    axes = heat.axes[0]
    lines = [*heat.texts, axes.xaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
    places = [line.get_window_extent() for line in lines]
    for line, place in zip(lines, places, strict=True):
        assert place.x0 >= 0 and place.y0 >= 0, line
        assert place.x1 <= heat.bbox.x1 and place.y1 <= heat.bbox.y1, line
        assert place.count_overlaps(places) == 1, f"{line} lies over another"
    assert "left out: 20 layouts that ran slower or crashed" in _words(heat) or number < 60


def _words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.texts)


def test_nothing_tried_leaves_no_picture(tmp_path: Path) -> None:
    (tmp_path / "heat-map.png").write_bytes(b"of an earlier session")
    assert pictures.draw(result_of([skipped()]).measured[0], CLUSTER, tmp_path) == [] and not list(tmp_path.iterdir())
    assert len(pictures.draw(result_of([oom()]).measured[0], CLUSTER, tmp_path)) == 2
