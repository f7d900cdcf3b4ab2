"""The pictures of the README and of the docs are drawn from the tables that are committed."""

from pathlib import Path

from PIL import Image

import scripts.search_picture as search_picture

ROOT = Path(__file__).parents[2]


def test_the_search_s_picture_is_of_the_committed_tables() -> None:
    with Image.open(search_picture.PICTURE) as drawn:
        assert drawn.info["Table"] == search_picture.fingerprint(), "run python -m scripts.search_picture"
    assert str(search_picture.PICTURE.relative_to(ROOT)) in (ROOT / "README.md").read_text()


def test_each_picture_is_shown_by_a_page() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    assert [path.name for path in (ROOT / "docs" / "pictures").iterdir() if f"pictures/{path.name}" not in pages] == []
