"""The winner is computed in one place: reports, the mirror and the exit code use a command's one result."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PLATFORM = Path(__file__).parents[2] / "platform"
RANKING = frozenset(
    [
        "winner",
        "ranked",
        "rank",
        "by_speed",
        "points",
        "comparisons",
        "compared",
        "contenders_of",
        "unresolved_of",
        "compare",
        "verdict_on",
        "coverage",
        "has_curves",
    ]
)
"""Functions of `platform/study/result` from which a result is made."""
RANKERS = ("study/result/", "search/confirmation/", "search/loop/", "search/setup/study_setup.py")
"""Places that may ask them: where they are, what decides by them which trial runs next, and the gate's size."""
MAKERS = frozenset(
    (
        "api/studies.py",
        "report/__main__.py",
        "report/follow.py",
        "report/group_report.py",
        "search/rechecking/command.py",
        "search/session/output.py",
        "search/setup/rechecked.py",
        "train/target.py",
    )
)
"""Modules that compute a result: those of a command, and of a running search."""
MIRRORED = frozenset(("tracking/mirror.py", "tracking/study_run.py"))
"""Modules of the mirror that read a journal themselves while the search runs, and other studies of a group."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PLATFORM.rglob("*.py")):
        yield str(path.relative_to(PLATFORM)), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.AST) -> set[str]:
    """Returns the names imported from `platform.study.result`, and its modules that are imported whole."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    names = {
        name.name for node in nodes if str(node.module).startswith("platform.study.result.") for name in node.names
    }
    return names | {
        f"{name.name} whole" for node in nodes if node.module == "platform.study.result" for name in node.names
    }


def makes_result(tree: ast.AST) -> bool:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    attributes = (call for call in calls if isinstance(call, ast.Attribute) and call.attr == "of")
    return any(
        isinstance(attribute.value, ast.Name) and attribute.value.id == "StudyResult" for attribute in attributes
    )


def test_the_search_alone_asks_what_ranks_points() -> None:
    askers = {name for name, tree in modules() if imported(tree) & RANKING}
    assert {name for name in askers if not name.startswith(RANKERS)} == set()


def test_no_module_of_the_result_is_imported_whole_elsewhere() -> None:
    importers = {name for name, tree in modules() if any(name.endswith(" whole") for name in imported(tree))}
    assert {name for name in importers if not name.startswith(RANKERS)} == set()


def test_a_result_is_computed_by_the_commands_and_while_a_search_runs() -> None:
    assert {name for name, tree in modules() if makes_result(tree)} == MAKERS | MIRRORED


@pytest.mark.parametrize(
    "line",
    [
        "from platform.study.result.ranking import winner",
        "from platform.study.result.tie_break import contenders_of as tied",
        "def f():\n    from platform.study.result.gate import verdict_on",
    ],
)
def test_an_import_of_what_ranks_points_is_seen(line: str) -> None:
    assert imported(ast.parse(line)) & RANKING


def test_an_import_of_a_whole_module_and_a_computed_result_are_seen() -> None:
    assert imported(ast.parse("from platform.study.result import ranking")) == {"ranking whole"}
    assert makes_result(ast.parse("x = show(StudyResult.of(history))")) and not makes_result(
        ast.parse("Batch.of(history)")
    )
