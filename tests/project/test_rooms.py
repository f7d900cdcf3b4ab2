"""Imports between the rooms of `platform/` follow the order in which docs/architecture.md lists them."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLATFORM = ROOT / "platform"


def _order() -> list[str]:
    """Returns the rooms in the order of the page's table, which names each in its first cell."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("## The rooms of `platform/`")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [room for cell in cells for room in re.findall(r"`(\w+)/`", cell)]


def _imports(path: Path) -> set[str]:
    """Returns the modules and names that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{name.name}" for name in node.names}
    return names


def test_the_page_lists_every_room_once():
    rooms = sorted(path.name for path in PLATFORM.iterdir() if (path / "__init__.py").exists())
    assert sorted(_order()) == rooms


def test_a_room_imports_only_rooms_listed_above_it():
    order = _order()
    wrong: list[str] = []
    for place, room in enumerate(order):
        for path in sorted((PLATFORM / room).rglob("*.py")):
            for name in sorted(_imports(path)):
                parts = name.split(".")
                if parts[0] == "platform" and len(parts) > 1 and (PLATFORM / parts[1]).exists():
                    if parts[1] not in order[: place + 1]:
                        wrong.append(f"{path.relative_to(ROOT)} imports {name}")
                elif parts[0] == "platform" and len(parts) > 1 and (PLATFORM / f"{parts[1]}.py").exists():
                    wrong.append(f"{path.relative_to(ROOT)} imports the command {parts[1]}")
    assert not wrong, "\n".join(wrong)
