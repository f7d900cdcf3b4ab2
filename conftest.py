"""Configures every test: our modules beside the standard `platform`, the flag that writes golden files, threads, and
which tests may run at the same time.

A bare `pytest` has imported the standard library's `platform` before it reads this file; with the folder as its
`__path__`, `platform.search` is found there as it is under `python -m platform.search`. A child of a test that runs
`python -c` imports this file too: `scripts/install_pth.py` may have been run for another checkout.
"""

import functools
import os
import random
import re
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import platform
from trainers.spec.optional_kernels import OptionalKernel

if TYPE_CHECKING:
    from tests.wording import Wording

ROOT = Path(__file__).resolve().parent
platform.__path__ = [str(ROOT / "platform")]
# A shell starts what it runs in the background with Ctrl-C ignored, and children inherit that: no test could send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.pop("COLUMNS", None)  # what is printed follows it, and pytest's own processes set it
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads of small products wait for each other, as torch's do below
os.environ["HF_HUB_OFFLINE"] = "1"  # a path that is not there may have the form of an id of the hub

# Spaces have the same layouts wherever tests run: packages of optional kernels are hidden.
_IS_INSTALLED = OptionalKernel.is_installed
pytest.MonkeyPatch().setattr(OptionalKernel, "is_installed", False)
# What a command prints is compared with what it must print: no line of its progress comes between on a busy machine.
pytest.MonkeyPatch().setattr("platform.common.progress.FIRST_S", 3600.0)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--regenerate-golden`."""
    parser.addoption("--regenerate-golden", action="store_true", help="write golden files anew, to be read as a diff")


def pytest_configure() -> None:
    """Gives hypothesis all the time that an example takes on a busy machine, and the same examples everywhere."""
    import hypothesis

    hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Returns True for a file of whose every test `-m "not (NAME or ...)"` leaves out: its imports take seconds."""
    left_out = re.fullmatch(r"not \(?(\w+(?: or \w+)*)\)?", str(config.getoption("markexpr")))
    if not left_out or collection_path.suffix != ".py":
        return None
    whole = re.search(r"^pytestmark = (.*)$", collection_path.read_text(encoding="utf-8"), re.MULTILINE)
    marks = set(re.findall(r"pytest\.mark\.(\w+)", whole[1])) if whole else set[str]()
    return True if marks & set(left_out[1].split(" or ")) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests by the phase of their file; within a phase the order stays."""
    items.sort(key=lambda item: _PHASES.index(_phase(item.path)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Returns the scheduler of `pytest -n`: file by file to whichever process is free, but all that start Ray to one of
    them.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduler(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "ray" if _phase(ROOT / file) in _RAY else file

    return Scheduler(config, log)


# The longest comes first. One process starts Rays one after another, which mostly wait. Beside it the other one first
# runs groups of training processes, which keep all cores busy. Whole searches come last among what starts Rays: by then
# these groups are done, and the machine is quieter.
_PHASES = ("ray", "search", "contract", "")
_RAY = frozenset({"ray", "search"})


@functools.cache
def _phase(file: Path) -> str:
    """Returns the phase that `file` has a marker of, a search before Ray; "" where it has none."""
    text = file.read_text(encoding="utf-8")
    return next((name for name in ("search", "ray", "contract") if f"pytest.mark.{name}" in text), "")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Gives torch one thread in this process, as the ranks beside it have, and each test the same random numbers,
    whatever ran before it in this process.

    With a thread for each core, each of thousands of small operations waits until the other processes of the tests let
    the last of its threads run: that took ten times as long, and as much of the processor.
    """
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
        if torch.get_num_threads() > 1:
            torch.set_num_threads(1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Refuses a test that leaves a watchdog: minutes later it would end the process, in the middle of another test.

    Raises:
        AssertionError: one is there.
    """
    watchdogs = [thread for thread in threading.enumerate() if thread.name == "watchdog"]
    assert not watchdogs, f"{item.nodeid} left {len(watchdogs)} watchdogs: stop them"


@pytest.fixture
def regenerate_golden(request: pytest.FixtureRequest) -> bool:
    """Returns whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--regenerate-golden"))


@pytest.fixture
def wording(request: pytest.FixtureRequest, regenerate_golden: bool) -> "Wording":
    """Returns what compares the test's sentences with the recorded ones."""
    from tests.wording import Wording

    test = request.node.nodeid.split("::", 1)[1]
    return Wording(request.path, test, regenerates=regenerate_golden)


@pytest.fixture
def sees_optional_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a test look for the packages of optional kernels."""
    monkeypatch.setattr(OptionalKernel, "is_installed", _IS_INSTALLED)
