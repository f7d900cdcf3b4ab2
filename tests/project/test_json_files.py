"""JSON is read from files by `read_json` alone, which refuses what hangs, ends in a traceback or names no path."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "platform/cluster/providers.py": "Ray's state, from memory",
    "platform/tracking/runs.py": "a tag that MLflow's server answers with",
    "platform/train/exporting/plain_training.py": "runs without this project",
    "platform/train/preparing/documents.py": "a line of the user's data",
    "trainers/records/journal_lines.py": "a line of a journal",
    "trainers/spec/codec.py": "`json_object`, for texts in memory",
    "trainers/spec/workload.py": "a value of an axis, from a command line",
    "trainers/startup/prestart.py": "Ray's runtime environment, from memory",
}
"""The modules that parse JSON otherwise, and what it is."""


def _parsing(source: str) -> Iterator[int]:
    """Yields the lines that use `json.load` or `json.loads`, by whatever name."""
    tree = ast.parse(source)
    names = {"json"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or "json" for alias in node.names if alias.name == "json"}
        elif isinstance(node, ast.ImportFrom) and node.module == "json":
            yield from (node.lineno for alias in node.names if alias.name in ("load", "loads", "JSONDecoder"))
        elif isinstance(node, ast.Attribute) and node.attr in ("load", "loads", "JSONDecoder"):
            yield from [node.lineno] if isinstance(node.value, ast.Name) and node.value.id in names else []


def test_files_are_read_by_one_function() -> None:
    parsing = {
        str(path.relative_to(ROOT))
        for folder in ("platform", "search_spaces", "trainers")
        for path in (ROOT / folder).rglob("*.py")
        if any(_parsing(path.read_text(encoding="utf-8")))
    }
    assert parsing == set(ALLOWED)


def test_each_way_to_parse_is_seen() -> None:
    for source in ("import json\njson.loads(x)", "import json as j\nj.load(x)", "from json import loads"):
        assert list(_parsing(source))
    assert not list(_parsing("import json\njson.dumps(x)"))
