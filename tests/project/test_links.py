"""Links within the documentation lead to files and headings that exist."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True).stdout.split())


def headings(page: Path) -> set[str]:
    """Returns the anchors that a forge makes of a page's headings."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    titles = re.findall(r"(?m)^#+ +(.*?) *$", text)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-")
        for title in titles
    }


def test_there_are_pages() -> None:
    assert len(PAGES) > 10


@pytest.mark.parametrize("name", PAGES)
def test_each_link_leads_somewhere(name: str) -> None:
    page = ROOT / name
    broken: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?ms)^```.*?^```", "", page.read_text())):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (anchor and other.suffix == ".md" and anchor not in headings(other)):
            broken.append(target)
    assert broken == []


def test_each_page_is_linked_from_the_first_one() -> None:
    first = (ROOT / "README.md").read_text()
    pages = [name for name in PAGES if Path(name).parent == Path("docs")]
    assert len(pages) > 30 and [name for name in pages if f"({name}" not in first] == []
