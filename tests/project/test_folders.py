"""Folders of tests mirror the rooms of the source, as CONTRIBUTING.md promises."""

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("benchmarks", "deploy", "platform", "scripts", "search_spaces", "trainers")
ACROSS_ROOMS: Mapping[str, str] = {
    "contract": "holds every engine, mesh and kernel to one reference",
    "faults": "hurts whole searches and the machines under them",
    "project": "holds all files to a rule: names, imports, words, links, pages",
    "search": "runs whole searches, as a user starts them",
}
"""Folders of tests that belong to no room, with what they do."""
TESTED_ACROSS_ROOMS: Mapping[str, str] = {"engines": "contract"}
"""Rooms whose tests are in one of these folders."""


def _rooms() -> set[str]:
    """Returns the folders of code directly under `platform` and `trainers`, and those at the top."""
    files = [file for part in ("platform", "trainers") for file in (ROOT / part).glob("*/*.py")]
    return {file.parent.name for file in files} | set(PARTS)


def _folders() -> set[str]:
    """Returns the folders that hold tests."""
    tests = ROOT / "tests"
    return {file.relative_to(tests).parts[0] for file in tests.rglob("test_*.py")}


def test_each_folder_of_tests_is_a_room_or_crosses_rooms() -> None:
    assert _folders() <= _rooms() | ACROSS_ROOMS.keys()
    assert not _rooms() & ACROSS_ROOMS.keys()


def test_each_room_has_its_tests() -> None:
    assert _rooms() - _folders() == TESTED_ACROSS_ROOMS.keys()
    assert set(TESTED_ACROSS_ROOMS.values()) <= ACROSS_ROOMS.keys()
