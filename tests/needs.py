"""Checks whether the machine can run a test.

A test without its tools is skipped and says how to install them; under CI it fails, because everything can be installed
there. A test that the kernel refuses to this user (mounting, namespaces, control groups) is skipped everywhere with the
kernel's message: no package grants the privilege, and a substitute would test something else. Any other error of the
same call fails the test.
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
    """Returns the programs' paths; skips the test if one is missing. `packages` are the Debian packages with them."""
    paths = {name: shutil.which(name, path=_PLACES) for name in names}
    if missing := [name for name, path in paths.items() if path is None]:
        _missing(f"{' and '.join(missing)} must be installed (Debian: apt-get install {packages})")
    return [path for path in paths.values() if path is not None]


def browser() -> str:
    """Returns the path of Chromium; skips the test if there is none."""
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
    """Skips the test if this user is not root; only root may do `to`."""
    if os.geteuid():
        refused(to, "this user is not root")


def family(architecture: str) -> None:
    """Skips the test if the installed transformers, such as that of the GPU figures, lacks the architecture.

    That of constraints.txt has all of them: under it the test fails.
    """
    if architecture not in CONFIG_MAPPING:
        installed = f"transformers=={transformers.__version__}"
        constraints = (Path(__file__).resolve().parents[1] / "constraints.txt").read_text().splitlines()
        assert installed not in constraints, f"{installed} has no {architecture}"
        pytest.skip(f"{installed} cannot build {architecture}, that of constraints.txt can: `make test` runs this test")


def refused(needed: str, answer: str) -> NoReturn:
    """Skips the test: only privileged users may do `needed`, and the kernel's refusal was `answer`."""
    pytest.skip(f"the kernel of this host refuses {needed} to this user, and nothing can stand in: {answer}")


def _missing(installation: str) -> NoReturn:
    """Fails the test under CI, where everything can be installed; elsewhere skips it and names the `installation`."""
    if "CI" in os.environ:
        pytest.fail(f"under CI {installation}")
    pytest.skip(f"{installation}; `.ci/run` installs it, and fails without it")
