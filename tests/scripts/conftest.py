"""The package as it is installed, made once."""

import zipfile
from pathlib import Path

import pytest

from scripts.package import make_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="session")
def site(wheel: Path) -> Path:
    """Returns a folder that holds the installed package."""
    zipfile.ZipFile(wheel).extractall(wheel.parent / "site")
    return wheel.parent / "site"
