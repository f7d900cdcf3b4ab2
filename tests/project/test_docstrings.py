"""Docstrings are understood at first reading: they begin with their subject or verb, and names are standard terms."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("benchmarks", "deploy", "platform", "scripts", "search_spaces", "trainers")
FRAGMENT = re.compile(
    r"(After|As|At|Before|Between|By|For|From|How|If|In|Like|Of|On|Over|Such|That|Those|To|Under|Until|What|When|Where"
    r"|Which|Who|Whose|Why|With|Within)\b"
)
"""First words of a clause that lacks its subject."""
VERB = re.compile(r"[A-Z][a-z]+s\b(?!')")
"""A first word in the third person, such as "Returns"."""
NOUNS = re.compile(r"(Axes|Bytes|Columns|Degrees|Its|Names|Nodes|Parameters|Ranks|Rows|Seconds|Shares|This|Tokens)\b")
"""First words that end like such a verb."""
DIALECT = frozenset(("foreseen", "foretold", "found", "hurt", "met", "roomy", "said", "told"))
"""Participles that say nothing of what a name stands for."""
VAGUE = frozenset((
    "asked", "done", "given", "got", "here", "kept", "known", "made", "once", "one", "own", "rest", "say", "seen",
    "taken", "there", "wanted", "what", "which", "whole",
))  # fmt: skip
"""Further participles and function words, refused where a name is given; libraries have attributes of such names."""


@functools.cache
def _trees(*rooms: str) -> dict[str, ast.Module]:
    paths = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    assert len(paths) > 200
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in paths}


def fragments(tree: ast.Module) -> Iterator[str]:
    """Yields the line and the text of each docstring that begins without its subject or its verb."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                text = ast.get_docstring(node)
                is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
                if text and (FRAGMENT.match(text) or not (is_property or (VERB.match(text) and not NOUNS.match(text)))):
                    yield f"{node.lineno}: {text}"
            case ast.ClassDef() | ast.Module():
                if FRAGMENT.match(text := ast.get_docstring(node) or ""):
                    yield f"{getattr(node, 'lineno', 1)}: {text}"
                yield from _of_values(node)
            case _:
                pass


def _of_values(owner: ast.ClassDef | ast.Module) -> Iterator[str]:
    for before, after in zip(owner.body, owner.body[1:], strict=False):
        match before, after:
            case (ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text)))) if FRAGMENT.match(
                text
            ):
                yield f"{after.lineno}: {text}"
            case _:
                pass


def dialect(tree: ast.Module, vague: frozenset[str] = VAGUE) -> Iterator[str]:
    """Yields the line and the name of each function, class, argument, variable and attribute with such a name."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Load()) if name.strip("_") in DIALECT:
                yield f"{node.lineno}: {name}"
            case (
                ast.FunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.Name(id=name, ctx=ast.Store())
            ) if name.strip("_") in DIALECT | vague:
                yield f"{node.lineno}: {name}"
            case _:
                pass


def test_docstrings_begin_with_their_subject_or_verb() -> None:
    assert [
        f"{path}:{fragment}" for path, tree in _trees(*ROOMS, "tests").items() for fragment in fragments(tree)
    ] == []


def test_names_are_standard_terms() -> None:
    assert [f"{path}:{finding}" for path, tree in _trees(*ROOMS, "tests").items() for finding in dialect(tree)] == []


@pytest.mark.parametrize(
    "source",
    [
        '"""What a study holds."""',
        'class A:\n    """How it ends."""',
        'class A:\n    size: int\n    """Of a whole node."""',
        'def f():\n    """The largest of them."""',
        'def f():\n    """Bytes of the largest."""',
        'class A:\n    @property\n    def f(self):\n        """Over the last minute."""',
    ],
)
def test_a_fragment_is_seen(source: str) -> None:
    assert len(list(fragments(ast.parse(source)))) == 1


def test_whole_sentences_and_phrases_pass() -> None:
    source = (
        'class A:\n    """A node."""\n    size: int\n    """Bytes of it."""\n    def f(self):\n        """Ends it."""'
    )
    assert not list(fragments(ast.parse(source)))


@pytest.mark.parametrize("word", sorted(DIALECT | VAGUE))
@pytest.mark.parametrize("source", ["def {}(): ...", "def f({}): ...", "{} = 1", "class A:\n    {}: int = 1"])
def test_a_word_of_our_own_is_seen_as_a_name_and_not_as_text(source: str, word: str) -> None:
    assert [finding.partition(": ")[2] for finding in dialect(ast.parse(source.format(word)))] == [word]
    assert not list(dialect(ast.parse(f"text = '{word}'")))
