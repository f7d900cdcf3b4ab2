"""Words that public text must not contain, and the length of the pages."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "docs", "platform", "scripts", "search_spaces", "tests", "trainers")
INTERNAL = re.compile(r"\bseed 0\d\d\b|\bseeds'", re.IGNORECASE)
"""Working names of the notes that the project began from; a random seed is called otherwise."""


def test_sources_are_called_by_what_they_are() -> None:
    assert INTERNAL.search("in seed 003, say")
    suffixes = {".py", ".md", ".json", ".csv", ".txt", ".yaml", ".toml"}
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    assert len(paths) > 100
    this_file = Path(__file__)
    named = [
        path for path in (*paths, *ROOT.glob("*.md")) if path != this_file and INTERNAL.search(path.read_text("utf-8"))
    ]
    assert named == []


def test_the_pages_stay_short() -> None:
    """Counts the words of each page of README, contributing and docs, with those that `make docs` writes, without
    laboratory notes.
    """
    docs = [page for page in (ROOT / "docs").rglob("*.md") if "lab" not in page.relative_to(ROOT).parts]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *docs]
    words = {str(page.relative_to(ROOT)): len(re.findall(r"\S*\w\S*", page.read_text("utf-8"))) for page in pages}
    assert len(pages) > 20
    looked_up = "docs/reference/"  # tables that nobody reads from end to end
    too_long = [name for name, count in words.items() if count > (3_000 if name.startswith(looked_up) else 1_900)]
    assert too_long == [], "move what only explains history to docs/lab"
