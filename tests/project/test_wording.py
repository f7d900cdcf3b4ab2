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


LONGEST = 900
"""Words of a page that people read from end to end."""
LONGER = {
    "docs/lab/README.md": 2_100,
}
"""The list of all findings may have more."""


def test_the_pages_stay_short() -> None:
    """Counts the words of README, contributing and each page of docs; pages of `make docs` are looked up, not read."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    words = {str(page.relative_to(ROOT)): len(re.findall(r"\S*\w\S*", page.read_text("utf-8"))) for page in pages}
    assert len(pages) > 20 and set(LONGER) <= set(words)
    written = "docs/reference/"
    most = {name: 3_000 if name.startswith(written) else LONGER.get(name, LONGEST) for name in words}
    assert [name for name, count in words.items() if count > most[name]] == [], "move figures to rows of docs/lab"
