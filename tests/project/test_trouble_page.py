"""The pages for when something goes wrong quote messages: each must be one that the software can print."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / f"{name}.md" for name in ("when-something-goes-wrong", "when-a-command-stops")]


def _strings_of(file: Path) -> list[str]:
    """Returns the constant parts of every string of a module, joined as Python joins them."""
    strings = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant))
    return [node.value for node in strings if isinstance(node.value, str)]


def _is_said(words: list[str], software: str) -> bool:
    """Returns whether the words are parts of the software's strings, of at least three words, put together."""
    for end in range(len(words), 2, -1):
        part = " ".join(words[:end]).removesuffix("s")  # the software counts in singular and plural
        if part in software and (end == len(words) or _is_said(words[end:], software)):
            return True
    return not words or " ".join(words).removesuffix("s") in software


def test_every_sentence_that_it_quotes_exists() -> None:
    files = [file for folder in ("platform", "trainers") for file in (ROOT / folder).rglob("*.py")]
    software = "\n".join(text for file in files for text in _strings_of(file))
    rows = [row for page in PAGES for row in re.findall(r"^\| (.*?) \| ", page.read_text(), re.MULTILINE)]
    quoted = [quotation for row in rows for quotation in re.findall(r"`([^`]*)`", row)]
    assert len(quoted) > 20
    for sentence in quoted:
        # Outcomes stand before a line's layout; capitals, and what differs, are no words of the software's.
        text = re.sub(r"^(oom|hung|diverged|thrash|failed|error):", "", sentence)
        for part in re.split(r"\b[A-Z]{2,}\b|\bN\b|\bnan\b|\.\.\.|[,:;()]", text):
            words = part.strip(" .").split()
            assert _is_said(words, software), f"{part!r} of {sentence!r}"
    assert not _is_said(["trials", "stood", "on", "their", "heads"], software)
