"""The page for when something goes wrong quotes sentences: each must be one that the software can say."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "when-something-goes-wrong.md"


def _said(file: Path) -> list[str]:
    """The constant parts of every string of a module, joined as Python joins them."""
    strings = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant))
    return [node.value for node in strings if isinstance(node.value, str)]


def _is_said(words: list[str], said: str) -> bool:
    """Whether the words are parts of the software's strings, of two words at least, put together."""
    for end in range(len(words), 1, -1):
        part = " ".join(words[:end]).removesuffix("s")  # the software counts in singular and plural
        if part in said and (end == len(words) or _is_said(words[end:], said)):
            return True
    return not words or " ".join(words).removesuffix("s") in said


def test_every_sentence_that_it_quotes_exists() -> None:
    files = [file for folder in ("platform", "trainers") for file in (ROOT / folder).rglob("*.py")]
    said = "\n".join(text for file in files for text in _said(file))
    rows = re.findall(r"^\| (.*?) \| ", PAGE.read_text(), re.MULTILINE)
    quoted = [each for row in rows for each in re.findall(r"`([^`]*)`", row)]
    assert len(quoted) > 20
    for sentence in quoted:
        # Outcomes stand before a line's layout; capitals, and what differs, are no words of the software's.
        text = re.sub(r"^(oom|hung|diverged|thrash|failed|error):", "", sentence)
        for part in re.split(r"\b[A-Z]{2,}\b|\bN\b|\bnan\b|\.\.\.|[,:;()]", text):
            words = part.strip(" .").split()
            assert _is_said(words, said), f"{part!r} of {sentence!r}"
    assert not _is_said(["trials", "stood", "on", "their", "heads"], said)
