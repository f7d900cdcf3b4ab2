"""The pictures of the README and of the docs are drawn from the tables that are committed."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import scripts.redrawn as redrawn
import scripts.search_picture as search_picture

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def picture() -> Any:
    """Returns the script as a module."""
    spec = importlib.util.spec_from_file_location("picture", ROOT / "scripts" / "picture.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["picture"] = module  # its dataclass looks its own module up
    spec.loader.exec_module(module)
    return module


def test_it_shows_all_that_was_run(picture: Any) -> None:
    points = picture.points(picture.TABLE)
    assert Counter(point.outcome for point in points) == {"thrash": 7, "oom": 7, "ok": 5}
    assert [point.layout for point in points if point.confirming] == ["DeepSpeed ZeRO-0", "DDP"]
    assert all((point.tokens_per_s is None) == (point.outcome == "oom") for point in points)


def test_the_committed_picture_is_of_the_committed_table(picture: Any) -> None:
    with Image.open(picture.PICTURE) as drawn:
        assert drawn.info["Table"] == picture.fingerprint(picture.TABLE), "run scripts/picture.py"
    page = ROOT / "docs" / "lab" / "2026-11-22.md"
    assert str(picture.PICTURE.relative_to(ROOT / "docs")) in page.read_text()


def test_the_search_s_picture_is_of_the_committed_tables() -> None:
    with Image.open(search_picture.PICTURE) as drawn:
        assert drawn.info["Table"] == search_picture.fingerprint(), "run python -m scripts.search_picture"
    assert str(search_picture.PICTURE.relative_to(ROOT)) in (ROOT / "README.md").read_text()


def test_redrawn_days_are_those_of_the_notes() -> None:
    page = (ROOT / "docs" / "lab" / "2026-11-22.md").read_text()
    for picture, (_, tables, _) in redrawn.DAYS.items():
        days = [f"{redrawn.days_of(redrawn.rows(table), 1e11).days:.3g}" for table in tables]
        (line,) = [line for line in page.splitlines() if f"({Path('../pictures') / picture}.png)" in line]
        assert all(day in line for day in days), (days, line)


def test_each_picture_is_shown_by_a_page() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    assert [path.name for path in (ROOT / "docs" / "pictures").iterdir() if f"pictures/{path.name}" not in pages] == []
