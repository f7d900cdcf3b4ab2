"""For every test: our modules beside the standard `platform`, and the flag that writes golden files anew.

A bare `pytest` has imported the standard library's `platform` before it reads this file; with the folder as its
`__path__`, `platform.search` is found there as it is under `python -m platform.search`. A child of a test that runs
`python -c` imports this file too: `scripts/install_pth.py` may have been run for another checkout.
"""

import signal
from pathlib import Path

import pytest

import platform

platform.__path__ = [str(Path(__file__).resolve().parent / "platform")]
# A shell starts what it runs in the background with Ctrl-C ignored, and children inherit that: no test could send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--regenerate-golden`."""
    parser.addoption("--regenerate-golden", action="store_true", help="write golden files anew, to be read as a diff")


@pytest.fixture
def regenerate_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written in place of compared."""
    return bool(request.config.getoption("--regenerate-golden"))
