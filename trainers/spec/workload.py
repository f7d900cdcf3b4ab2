"""`Workload`: a user's own training; the project knows how to start it and nothing about its content."""

import ast
import dataclasses
import hashlib
import importlib.util
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_BRACES = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)(?:=([^{}]*))?\}")
"""Matches doubled braces, or a hole: `{name}` or `{name=values}`. A word is read from the left, so the last of three
opening braces belongs to the hole.
"""


def holes_in(word: str) -> Iterator[re.Match[str]]:
    """Yields the holes of a word of a command, each a match of its name and, on request, its values."""
    return (match for match in _BRACES.finditer(word) if match[1])


def with_holes(word: str, fill: Callable[[re.Match[str]], str]) -> str:
    """Returns a word with each hole replaced by what `fill` returns for it, and other braces as they stand."""
    return _BRACES.sub(lambda match: fill(match) if match[1] else match[0], word)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A command with holes that trains a batch point of a layout when they are filled, or a function that builds its
    step.
    """

    name: str = dataclasses.field(metadata={"cosmetic": True})
    """Name of the file that runs."""
    command: tuple[str, ...]
    """Words of the command, with holes as `{name}`. In a word with `{{`, doubled braces mean single braces; other words
    keep their braces, so that JSON may be written as it is. Empty for a function.
    """
    digest: str
    """Hash of the command or the function's name, and of the files that it names."""
    folder: str = dataclasses.field(default="", metadata={"cosmetic": True})
    """Folder in which it runs; empty for the folder of the process that starts it."""
    step_line: str = ""
    """Pattern of the printed line that ends a step; empty if the command writes a line per step to a file."""
    environment: tuple[str, ...] = dataclasses.field(default=(), metadata={"later": True})
    """`NAME=VALUE` for each environment variable set in addition to the user's own, with holes as in the command."""
    build: str = dataclasses.field(default="", metadata={"later": True})
    """The function as `FILE.py:NAME` or `MODULE:NAME`, found from `folder`; empty for a command."""

    @property
    def holes(self) -> frozenset[str]:
        """Names of the command's holes, those in its environment among them."""
        return frozenset(match[1] for word in (*self.command, *self.environment) for match in holes_in(word))

    def filled(self, values: Mapping[str, object]) -> tuple[str, ...]:
        """Returns the words with their holes filled; a word that is a single hole with an empty value is left out."""
        words = ((word, _filled(word, values)) for word in self.command)
        return tuple(filled for word, filled in words if filled or not word)

    def variables(self, values: Mapping[str, object] | None = None) -> dict[str, str]:
        """Returns the additional environment variables by name, with holes filled by `values`, if given."""
        pairs = dict(_pairs(self.environment))
        return pairs if values is None else {name: _filled(value, values) for name, value in pairs.items()}


def _filled(word: str, values: Mapping[str, object]) -> str:
    is_doubled = "{{" in word

    def fill(match: re.Match[str]) -> str:
        if match[1]:
            return str(values[match[1]])
        return match[0][0] if is_doubled else match[0]

    return _BRACES.sub(fill, word)


def flags_text(values: Mapping[str, str]) -> str:
    """Returns the values of a command's own axes as text for `Layout.flags`."""
    return shlex.join(f"{name}={value}" for name, value in values.items())


def flags_of(text: str) -> dict[str, str]:
    """Returns the values by axis from a text of `flags_text`."""
    return dict(_pairs(shlex.split(text)))


def file_of(build: str, folder: str) -> Path:
    """Returns the file of the function that `Workload.build` names.

    The file is parsed, not run; only packages around a module outside the folder may be imported to find it.

    Raises:
        ValueError: the file is missing, is not Python, or does not define the function.
    """
    where, colon, name = build.partition(":")
    if not colon or not where or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"a function is named as FILE.py:NAME or MODULE:NAME, got {build!r}")
    path = _path_of(where, Path(folder))
    if path is None or not path.is_file():
        raise ValueError(f"{where} cannot be found from {folder or 'here'}")
    try:
        if path.stat().st_size > _MOST_SOURCE_BYTES:
            raise ValueError(f"it has more than {_MOST_SOURCE_BYTES:,} bytes")
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{path} is no Python: {error}") from error
    if name.partition(".")[0] not in _names_of(tree):
        raise ValueError(f"{path} has no function {name}")
    return path


def _path_of(where: str, folder: Path) -> Path | None:
    if where.endswith(".py"):
        return folder / where
    near = folder.joinpath(*where.split("."))
    for path in (near.with_suffix(".py"), near / "__init__.py"):
        if path.is_file():
            return path
    try:
        spec = importlib.util.find_spec(where)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin else None


def _names_of(tree: ast.Module) -> set[str]:
    """Returns the names that a module may define: functions, classes, assigned names and imports."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {
        (node.asname or node.name).partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.alias)
    }


def digest_of(words: Sequence[str], files: Sequence[Path]) -> str:
    """Returns 12 hex digits of SHA-256 over words and the contents of files."""
    digest = hashlib.sha256("\0".join(words).encode(*_AS_BYTES))
    for path in files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()[:12]


_MOST_SOURCE_BYTES = 16 * 2**20
_BLOCK_BYTES = 2**20
_AS_BYTES = (sys.getfilesystemencoding(), "surrogateescape")


def text_of(value: Any) -> str:
    """Returns an axis value as text that `value_of` reads back: the string itself if unambiguous, else JSON."""
    return value if isinstance(value, str) and value_of(value) == value else json.dumps(value)


def value_of(text: str) -> Any:
    """Returns the number, boolean, None or string that the text of an axis value means, as passed to a function.

    Text that is not JSON, is nested too deeply, or is no finite number (such as NaN) stays a string.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_value = isinstance(value, (int, float, str, type(None)))
    return value if is_value and not (isinstance(value, float) and not math.isfinite(value)) else text


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (word.partition("=") for word in words)]
