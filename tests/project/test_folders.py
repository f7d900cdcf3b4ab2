"""Folders of tests mirror the rooms of the source, as CONTRIBUTING.md promises."""

from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
FLOORS = ("platform", "trainers")
"""Floors that have rooms."""
PARTS = ("benchmarks", "deploy", "platform", "scripts", "search_spaces")
"""Folders at the top with tests of their own; those of `platform` are of its name and of its commands together."""
ACROSS_ROOMS: Mapping[str, str] = {
    "contract": "holds every engine, mesh and kernel to one reference",
    "faults": "hurts whole searches and the machines under them",
    "project": "holds all files to a rule: names, imports, words, links, pages",
    "whole_searches": "runs whole searches, as a user starts them",
}
"""Folders of tests that belong to no room, with what they do."""
TESTED_ACROSS_ROOMS: Mapping[str, str] = {"engines": "contract"}
"""Rooms whose tests are in one of these folders."""


def _rooms() -> list[Path]:
    """Returns the folders of code directly under each floor."""
    return sorted({file.parent for floor in FLOORS for file in (ROOT / floor).glob("*/*.py")})


def _sources() -> dict[str, Path]:
    """Returns the folder of code by the name of its folder of tests."""
    return {path.name: path for path in (*_rooms(), *(ROOT / part for part in PARTS))}


def _folders() -> Iterator[Path]:
    """Yields the folders that hold tests, as seen from `tests`."""
    yield from sorted({file.parent.relative_to(TESTS) for file in TESTS.rglob("test_*.py")})


def test_no_two_rooms_share_a_folder_of_tests() -> None:
    names = [path.name for path in _rooms()]
    assert sorted({*names, *PARTS, *ACROSS_ROOMS}) == sorted([*names, *PARTS, *ACROSS_ROOMS])


def test_each_folder_of_tests_is_a_room_or_crosses_rooms() -> None:
    assert {folder.parts[0] for folder in _folders()} <= _sources().keys() | ACROSS_ROOMS.keys()


def test_each_inner_folder_of_tests_is_one_of_its_room() -> None:
    inner = [folder for folder in _folders() if len(folder.parts) > 1]
    assert inner
    sources = {folder: _sources().get(folder.parts[0], TESTS).joinpath(*folder.parts[1:]) for folder in inner}
    assert [str(folder) for folder, source in sources.items() if source.is_relative_to(TESTS)] == []
    assert [str(folder) for folder, source in sources.items() if not any(source.glob("*.py"))] == []


def test_each_room_has_its_tests() -> None:
    assert _sources().keys() - {folder.parts[0] for folder in _folders()} == TESTED_ACROSS_ROOMS.keys()
    assert set(TESTED_ACROSS_ROOMS.values()) <= ACROSS_ROOMS.keys()
