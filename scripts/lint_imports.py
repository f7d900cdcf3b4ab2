"""Checks the product's imports by the contracts in `pyproject.toml` and prints import-linter's report.

    python -m scripts.lint_imports # of this checkout python -m scripts.lint_imports CHECKOUT # of another checkout

import-linter's own command would read the standard library's `platform` instead. Exit codes: 0; 1 a contract is broken
or cannot be checked.
"""

import argparse
import contextlib
import importlib.machinery
import sys
from pathlib import Path

from importlinter.cli import lint_imports

import platform

ROOT = Path(__file__).resolve().parent.parent


def lint(root: Path) -> int:
    """Prints the report on the checkout at `root`; returns import-linter's exit code. Call it once per process, because
    packages that are already imported would be read from their old place.
    """
    # import-linter asks Python for the package's folder through this spec, whichever module is loaded.
    platform.__spec__ = importlib.machinery.PathFinder.find_spec("platform", [str(root)])
    with contextlib.chdir(
        root
    ):  # import-linter puts the working folder first on the path, so all packages come from there
        return lint_imports(config_filenames=("pyproject.toml",), no_cache=True, no_logo=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "checkout", metavar="CHECKOUT", nargs="?", type=Path, default=ROOT, help="its root (default: this checkout)"
    )
    return lint(parser.parse_args().checkout.resolve())


if __name__ == "__main__":
    sys.exit(main())
