"""Each test file that starts several processes has a marker for it, which `make test` and `make test-quick` use."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NEEDS = {"run_group(": "contract", "ray.init(": "ray", "connected(": "ray"}
"""Marker by the calls that require it."""
FILES = {str(path.relative_to(TESTS)): path.read_text() for path in sorted(TESTS.rglob("test_*.py"))}


@pytest.mark.parametrize("call", NEEDS)
def test_a_file_that_starts_processes_has_the_marker(call: str) -> None:
    callers = [name for name, text in FILES.items() if call in text and name != "project/test_markers.py"]
    assert callers, "a name that nobody calls any longer guards nothing"
    assert [name for name in callers if f"pytest.mark.{NEEDS[call]}" not in FILES[name]] == []
