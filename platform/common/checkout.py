"""The commit of this checkout and the versions of the packages installed beside it."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from trainers.spec import engines, optional_kernels

ROOT = Path(__file__).resolve().parents[__name__.count(".")]
"""The folder that holds our packages: the checkout, or site-packages."""
COMMIT_FILE = Path(__file__).resolve().with_name("COMMIT")
"""Holds the commit of an installed package. Its build writes the file; a checkout has none."""
COMMIT_VARIABLE = "LAYOUT_SEARCH_COMMIT"
"""Environment variable with the commit of a copy without .git, such as a container or a submitted job."""
_PACKAGES = ("ray", "torch", *engines.packages(), "transformers", "mlflow", "pyarrow")


def commit() -> str:
    """Returns the short commit hash, with "+dirty" if tracked files are changed; "unknown" outside a git checkout.

    `COMMIT_VARIABLE` takes precedence, then `COMMIT_FILE`, then git. An installed package does not ask git, because the
    folder around it may be another project's checkout.
    """

    def git(*arguments: str) -> str:
        completed = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
        return completed.stdout.strip()

    if stated := os.environ.get(COMMIT_VARIABLE):
        return stated
    if COMMIT_FILE.exists():
        return COMMIT_FILE.read_text().strip()
    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+dirty" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def versions() -> dict[str, str]:
    """Returns versions by package: Python, "missing" for absent required packages, and installed optional packages."""
    packages = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in _PACKAGES:
        try:
            packages[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            packages[package] = "missing"
    for package in optional_kernels.PACKAGES:
        for distribution in importlib.metadata.distributions(name=package):
            packages[package] = distribution.version
    return packages
