"""Imports keep the contracts in `pyproject.toml`; a wrong one planted in a copy breaks the contract that forbids it."""

import ast
import contextlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("platform", "search_spaces", "trainers")
UNLISTED = "The following modules are not listed as layers"
OF_THE_SPEC = "packaging"
"""The one package that `trainers.spec` may import: it compares versions of the packages of optional kernels."""

PLANTED = {
    "a room imports a higher one": (
        "trainers/spec/codec.py",
        "import trainers.engines.stepper",
        "Rooms of trainers",
        "trainers.spec.codec -> trainers.engines.stepper",
    ),
    "for type checkers": (
        "trainers/records/measurement.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from trainers.trial.worker import TrialWorker",
        "Rooms of trainers",
        "trainers.records.measurement -> trainers.trial.worker",
    ),
    "in a function": (
        "trainers/kernels/mlp.py",
        "def later():\n    from trainers.mesh import pipeline\n    return pipeline",
        "Rooms of trainers",
        "trainers.kernels.mlp -> trainers.mesh.pipeline",
    ),
    "a room imports one beside it": (
        "trainers/host/node.py",
        "import trainers.marks.kinds",
        "Rooms of trainers",
        "trainers.host.node -> trainers.marks.kinds",
    ),
    "a study imports reports": (
        "platform/study/history.py",
        "from platform.report.summary import verdicts",
        "Rooms of platform",
        "platform.study.history -> platform.report.summary",
    ),
    "a report mirrors": (
        "platform/report/show.py",
        "from platform.tracking.mirror import Mirror",
        "Rooms of platform",
        "platform.report.show -> platform.tracking.mirror",
    ),
    "an inner layer imports a higher one": (
        "platform/search/setup/options.py",
        "from platform.search.loop import budget",
        "Layers of platform.search",
        "platform.search.setup.options -> platform.search.loop.budget",
    ),
    "a floor imports a higher one": (
        "search_spaces/degrees.py",
        "from platform.common.text import plural",
        "Floors",
        "search_spaces.degrees -> platform.common.text",
    ),
    "the product imports tests": (
        "platform/common/text.py",
        "import tests.samples",
        "The product stands alone",
        "platform.common.text -> tests",
    ),
    "a room imports its own command": (
        "platform/search/session/header.py",
        "from platform.search.__main__ import main",
        "Nothing imports a command",
        "platform.search.session.header -> platform.search.__main__",
    ),
    "a room imports a command of one file": (
        "platform/plan/sizes.py",
        "import platform.converge",
        "Nothing imports a command",
        "platform.plan.sizes -> platform.converge",
    ),
    "an engine imports another": (
        "trainers/engines/ddp.py",
        "import trainers.engines.fsdp",
        "Engines import no other engine",
        "trainers.engines.ddp -> trainers.engines.fsdp",
    ),
    "the spec imports torch": (
        "trainers/spec/recipe.py",
        "def later():\n    import torch\n    return torch",
        "Spec, records and search spaces import no package",
        "trainers.spec.recipe -> torch",
    ),
    "a circle within a room": (
        "trainers/models/model.py",
        "import trainers.models.float8",
        "No circles",
        "No cycles are allowed in trainers.models.",
    ),
    "a room that is not listed": ("trainers/more/__init__.py", "", "Rooms of trainers", f"{UNLISTED}: - trainers.more"),
    "a file that is not listed": ("platform/more.py", "", "Rooms of platform", f"{UNLISTED}: - platform.more"),
}
"""File, lines that are planted in it, the contract that they break, and what the report says of them, by name."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of what the contracts are about: the sources and `pyproject.toml`."""
    root = tmp_path_factory.mktemp("checkout")
    for floor in FLOORS:
        shutil.copytree(ROOT / floor, root / floor, ignore=all_but_sources)
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def all_but_sources(folder: str, names: Sequence[str]) -> list[str]:
    """Returns the files of a folder that hold no Python; folders stay."""
    return [name for name in names if not name.endswith(".py") and not Path(folder, name).is_dir()]


@contextlib.contextmanager
def planting(path: Path, lines: str) -> Generator[None]:
    """Appends lines to a file, new or not; afterwards it is as before."""
    is_new_folder, before = not path.parent.exists(), path.read_text("utf-8") if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{before or ''}\n{lines}\n", encoding="utf-8")
    try:
        yield
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_text(before, encoding="utf-8")
        if is_new_folder:
            path.parent.rmdir()


def lint(*arguments: str) -> tuple[int, str]:
    """Returns the linter's exit code and its report with single spaces."""
    line = [sys.executable, "-m", "scripts.lint_imports", *arguments]
    environment = os.environ | {"COLUMNS": "200"}  # the report breaks lines at the terminal's width
    child = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    return child.returncode, " ".join((child.stdout + child.stderr).split())


def packages_of(tree: ast.Module) -> Iterator[str]:
    """Yields the first name of every module that a file imports, also in functions."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name.partition(".")[0] for name in names)
            case ast.ImportFrom(module=str(module)):
                yield module.partition(".")[0]
            case _:
                pass


def test_imports_keep_the_contracts() -> None:
    code, report = lint()
    assert code == 0 and " 0 broken." in report, report


def test_another_checkout_is_read_and_nothing_is_left_in_it(checkout: Path) -> None:
    before = sorted(checkout.rglob("*"))
    code, report = lint(str(checkout))
    assert code == 0, report
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize("planted", PLANTED)
def test_a_wrong_import_breaks_its_contract(planted: str, checkout: Path) -> None:
    file, lines, contract, words = PLANTED[planted]
    with planting(checkout / file, lines):
        code, report = lint(str(checkout))
    assert code == 1 and f"{contract} BROKEN" in report and words in report, report


def test_the_spec_may_import_no_package_that_the_product_imports() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (forbidden,) = (
        set(contract["forbidden_modules"])
        for contract in contracts
        if "trainers.spec" in contract.get("source_modules", ())
    )
    files = [path for floor in FLOORS for path in (ROOT / floor).rglob("*.py")]
    imported = {package for path in files for package in packages_of(ast.parse(path.read_text("utf-8")))}
    assert "torch" in imported
    assert imported - sys.stdlib_module_names - set(FLOORS) - {OF_THE_SPEC} <= forbidden
