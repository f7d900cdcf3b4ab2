"""Makes the wheel of the distribution `layout-search`: `python -m scripts.package [--out dist]`.

In the checkout the three packages are top-level, for `python -m platform.search`. An installed package must not change
the standard `platform` or hide a user's own `trainers`. So the wheel puts them below `layout_search`, and rewrites
absolute imports, names of modules in strings, and commands that sentences suggest.
"""

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.common.checkout import COMMIT_FILE, commit

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "layout_search"
TREES = ("platform", "search_spaces", "trainers")
DATA = ("*.html", "*.json", "*.parquet", "NOTICE", "COMMIT", "py.typed")
_TREE = "|".join(TREES)
_COMMANDS = "converge|export|plan|prepare|probe|recheck|replay|report|search|train|validate"
_NAMED = re.compile(rf"(?:python -m |(?<![\w.] -m )(?<![\w./-]))platform\.({_COMMANDS})(?!\w|\.\w)")
"""Matches a suggested command: `python -m platform.plan`, or its name alone."""
_DOTTED = re.compile(rf"(?<![\w./-])(?:{_TREE})(?:\.[a-z_0-9]+)+")

Change = tuple[int, int, int, str]
"""Line, first and last byte of the replaced part, and the replacement; a syntax tree's offsets are in bytes."""


def rewritten(source: str, modules: frozenset[str]) -> str:
    """Returns the source of a module as it is below `layout_search`; `modules` are the names of all modules of the
    packages.

    Raises:
        ValueError: an import cannot be rewritten within its line.
    """
    lines = source.splitlines(keepends=True)
    changes: set[Change] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            changes.update(_of_from(node))
        elif isinstance(node, ast.Import):
            changes.update(_of_import(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            changes.update(_of_text(node, lines, modules))
    for line, begin, end, text in sorted(changes, reverse=True):
        raw = lines[line].encode()
        lines[line] = (raw[:begin] + text.encode() + raw[end:]).decode()
    return "".join(lines)


def _of_from(node: ast.ImportFrom) -> Iterator[Change]:
    if node.level == 0 and (node.module or "").partition(".")[0] in TREES:
        begin = node.col_offset + len("from ")
        yield node.lineno - 1, begin, begin, f"{PACKAGE}."


def _of_import(node: ast.Import) -> Iterator[Change]:
    for alias in node.names:
        root, _, submodule = alias.name.partition(".")
        if root not in TREES or alias.name == "platform":  # the standard module
            continue
        if alias.asname is not None:
            yield alias.lineno - 1, alias.col_offset, alias.col_offset, f"{PACKAGE}."
        elif submodule or len(node.names) > 1:
            raise ValueError(f"line {node.lineno}: `import {alias.name}` has to be `from ... import` or `... as NAME`")
        else:
            yield node.lineno - 1, node.col_offset, alias.end_col_offset or 0, f"from {PACKAGE} import {root}"


def _of_text(node: ast.Constant, lines: Sequence[str], modules: frozenset[str]) -> Iterator[Change]:
    """Yields the changes to the commands and modules that a text names."""
    end_line = node.end_lineno or node.lineno
    for line in range(node.lineno - 1, end_line):
        raw = lines[line].encode()
        first = node.col_offset if line == node.lineno - 1 else 0
        text = raw[first : node.end_col_offset if line + 1 == end_line else len(raw)].decode()
        named = [(match.span(), f"layout-search {match[1]}") for match in _NAMED.finditer(text)]
        dotted = [match for match in _DOTTED.finditer(text) if {match[0], match[0].rpartition(".")[0]} & modules]
        command_places = {place for (begin, end), _ in named for place in range(begin, end)}
        named += [
            ((match.start(), match.start()), f"{PACKAGE}.") for match in dotted if match.start() not in command_places
        ]
        for (begin, end), new in named:
            yield line, first + len(text[:begin].encode()), first + len(text[:end].encode()), new


def write_tree(folder: Path) -> None:
    """Writes the package with its metadata into an empty folder, from which pip makes a wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", *TREES],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    modules = frozenset(
        file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in files if file.endswith(".py")
    )
    for file in files:
        target = folder / PACKAGE / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if not file.endswith(".py"):
            shutil.copyfile(ROOT / file, target)
        elif file == "platform/__init__.py":  # it changes the standard module, which an installed package must not do
            target.write_text('"""The driver: what to try next, what was learned, what is shown."""\n')
        else:
            target.write_text(rewritten((ROOT / file).read_text(encoding="utf-8"), modules), encoding="utf-8")
    for template in (ROOT / "scripts" / "package_root").glob("*.py"):
        shutil.copyfile(template, folder / PACKAGE / template.name)
    (folder / PACKAGE / "py.typed").touch()
    (folder / PACKAGE / COMMIT_FILE.relative_to(ROOT)).write_text(commit() + "\n")
    for name in ("README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, folder / name)
    (folder / "pyproject.toml").write_text(_metadata(project))


def _metadata(project: Mapping[str, Any]) -> str:
    """Returns the wheel's pyproject.toml, with names and requirements from this project's."""
    extras = project["optional-dependencies"]
    described = {key: value for key, value in project.items() if key != "optional-dependencies"}
    tables: dict[str, dict[str, Any]] = {
        "build-system": {"requires": ["setuptools>=77"], "build-backend": "setuptools.build_meta"},
        "project": described,
        "project.optional-dependencies": {name: extras[name] for name in extras if name != "dev"},
        "project.scripts": {"layout-search": f"{PACKAGE}.__main__:main"},
        "tool.setuptools.packages.find": {"include": [f"{PACKAGE}*"]},
        "tool.setuptools.package-data": {"*": list(DATA)},
    }
    # Strings and lists of strings have the same form in JSON and TOML, and there are no other values.
    return "\n".join(
        f"[{table}]\n" + "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in values.items())
        for table, values in tables.items()
    )


def make_wheel(out: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="layout-search-") as folder:
        write_tree(Path(folder))
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        subprocess.run([*command, "--no-build-isolation", "--wheel-dir", str(out), folder], check=True)
    return max(out.glob("layout_search-*.whl"), key=lambda path: path.stat().st_mtime)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.package", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheel (default: dist)")
    print(make_wheel(parser.parse_args().out))


if __name__ == "__main__":
    main()
