"""Checks imports of the product by the contracts in `pyproject.toml` and prints import-linter's report.

    python -m scripts.lint_imports                # of this checkout
    python -m scripts.lint_imports CHECKOUT       # of another one

import-linter's own command takes `platform` for the module of the standard library. Exit codes: 0, 1 a contract is
broken or cannot be checked.
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
    """Prints the report on the checkout at `root`. Returns import-linter's exit code.

    A process does so once: packages that are imported already are read from where they came from.
    """
    # Where import-linter asks Python for the package's folder, it gets this spec, of whichever module is loaded.
    platform.__spec__ = importlib.machinery.PathFinder.find_spec("platform", [str(root)])
    with contextlib.chdir(
        root
    ):  # import-linter puts the working folder first on the path: all packages come from there
        return lint_imports(config_filenames=("pyproject.toml",), no_cache=True, no_logo=True)


def main() -> int:
    """Runs the command. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "checkout", metavar="CHECKOUT", nargs="?", type=Path, default=ROOT, help="its root (default: this checkout)"
    )
    return lint(parser.parse_args().checkout.resolve())


if __name__ == "__main__":
    sys.exit(main())
