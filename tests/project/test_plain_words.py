"""Words of this project's own that a user must not need: they stand in no text that is printed, and on no page."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRIVATE = re.compile(r"\brungs?\b|\b[Hh]eld back\b|\bslower in\b|\bas told\b|\b(is|are|was) told\b")
ALONE = {"fits", "fit"}
"""Words that say too little as the title of a column."""
FOR_DEVELOPERS = {"architecture.md"}


def _printed(path: Path) -> Iterator[str]:
    """Yields the strings of a module that are no docstrings; of texts with figures the parts between them."""
    tree = ast.parse(path.read_text("utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def test_what_is_printed_and_read_has_plain_words() -> None:
    assert PRIVATE.search("with up to 24 rungs") and not PRIVATE.search("which a user told")
    modules = [path for floor in ("platform", "trainers", "search_spaces") for path in (ROOT / floor).rglob("*.py")]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")]
    assert len(modules) > 300 and len(pages) > 20
    texts = [(path, text) for path in modules for text in _printed(path)]
    texts += [(path, path.read_text("utf-8")) for path in pages if path.name not in FOR_DEVELOPERS]
    assert [f"{path.relative_to(ROOT)}: {text[:80]}" for path, text in texts if PRIVATE.search(text)] == []


def test_no_column_of_a_plan_is_called_by_half_a_sentence() -> None:
    calls = [
        node
        for path in (ROOT / "platform" / "plan").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "table_of"
    ]
    titles = [title.value for call in calls for title in call.args if isinstance(title, ast.Constant)]
    assert "memory ok" in titles and not ALONE & set(titles)
