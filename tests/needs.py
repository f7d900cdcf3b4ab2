"""Checks of what a test needs of its machine.

A test whose tools are missing is skipped and says how to install them; under CI it fails, since a machine of CI has all
that can be installed. A test that the kernel refuses to this user (mounting, namespaces, control groups) is skipped
everywhere and quotes the refusal: no package grants the privilege, and a stand-in would test something else. Any other
error of the same call fails the test.
"""

import contextlib
import os
import shutil
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import NoReturn

import pytest
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.hosts import HostsError
from tests.tracking.browser import chromium

_POSTGRESQL = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))
_PLACES = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", *_POSTGRESQL])


def tools(names: Iterable[str], packages: str) -> list[str]:
    """Returns the programs' paths; skips the test where one is missing. `packages` are Debian's that have them."""
    paths = {name: shutil.which(name, path=_PLACES) for name in names}
    if missing := [name for name, path in paths.items() if path is None]:
        _missing(f"{' and '.join(missing)} must be installed (Debian: apt-get install {packages})")
    return [path for path in paths.values() if path is not None]


def browser() -> str:
    """Returns the path of Chromium; skips the test where there is none."""
    program = chromium()
    if program is None:
        _missing("Chromium must be installed (Debian: apt-get install chromium), or named by CHROMIUM")
    return program


@contextlib.contextmanager
def namespaces() -> Generator[None]:
    """Skips the test where the kernel refuses namespaces to this user, or iproute2 is missing."""
    try:
        yield
    except HostsError as error:
        if "Operation not permitted" in str(error):
            refused("network namespaces", str(error))
        if "iproute2" in str(error):
            _missing(str(error))
        raise


def root(to: str) -> None:
    """Skips the test where this user is not root, who alone may do `to`."""
    if os.geteuid():
        refused(to, "this user is not root")


def family(architecture: str) -> None:
    """Skips the test where the installed transformers does not know the architecture, as that of the GPU figures."""
    if architecture not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {architecture}: that of constraints.txt has it")


def refused(needed: str, answer: str) -> NoReturn:
    """Skips the test: the kernel grants `needed` to privileged users alone, and its refusal was `answer`."""
    pytest.skip(f"{needed} needs privileges: run this test as root on a host that grants them; refused here: {answer}")


def _missing(installation: str) -> NoReturn:
    """Fails the test under CI, where everything can be installed; elsewhere skips it with the `installation` needed."""
    if "CI" in os.environ:
        pytest.fail(f"under CI {installation}")
    pytest.skip(f"to run this test, {installation}")
