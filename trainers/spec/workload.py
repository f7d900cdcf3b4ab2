"""`Workload`: a training of the user's own, known by the command that runs it and by nothing inside of it."""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence

HOLE = re.compile(r"(?<!\{)\{([A-Za-z_][A-Za-z0-9_]*)(?:=([^{}]*))?\}(?!\})")
"""A hole in a word of a command: a name, and on request its values."""
_DOUBLED = re.compile(r"\{\{|\}\}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A command with holes, which trains a batch point of a layout once these are filled."""

    name: str = dataclasses.field(metadata={"cosmetic": True})
    """Name of the file that the command runs."""
    command: tuple[str, ...]
    """Words of the command, with holes as `{name}`; doubled braces stand for single ones."""
    digest: str
    """Hash of the command and of the files that it names."""
    folder: str = dataclasses.field(default="", metadata={"cosmetic": True})
    """Folder in which it runs; empty for the folder of the process that starts it."""
    step_line: str = ""
    """Pattern of a printed line that ends a step; empty where the command writes lines of steps to a file."""

    @property
    def holes(self) -> frozenset[str]:
        """Names of the command's holes."""
        return frozenset(match[1] for word in self.command for match in HOLE.finditer(word))

    def filled(self, values: Mapping[str, object]) -> tuple[str, ...]:
        """Returns the words with their holes filled; a word that is one hole with an empty value is left out."""
        words = ((word, HOLE.sub(lambda match: str(values[match[1]]), word)) for word in self.command)
        return tuple(
            _DOUBLED.sub(lambda match: match[0][0], filled) for word, filled in words if filled or not HOLE.search(word)
        )


def flags_text(values: Mapping[str, str]) -> str:
    """Returns the values of a command's own axes as the text that `Layout.flags` holds."""
    return shlex.join(f"{name}={value}" for name, value in values.items())


def flags_of(text: str) -> dict[str, str]:
    """Returns the values by axis that `flags_text` wrote."""
    return dict(_pairs(shlex.split(text)))


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (word.partition("=") for word in words)]
