"""The wheel of `layout-search`: the trees below one package, which leaves the names of its user alone."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from platform.common.errors import NOT_RESOLVED
from scripts.package import TREES, rewritten
from tests.whole_searches.session import ROOT

MODULES = frozenset(
    {"trainers.spec.layout", "trainers.engines.ddp", "platform.plan", "platform.searchers", "search_spaces"}
)


def _python(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("import platform", "import platform"),
        ("import platform.searchers as searchers", "import layout_search.platform.searchers as searchers"),
        ("import search_spaces  # ours", "from layout_search import search_spaces  # ours"),
        ("    from trainers.spec.layout import Layout", "    from layout_search.trainers.spec.layout import Layout"),
        ("from torch import nn", "from torch import nn"),
        ('x = "trainers.engines.ddp:Engine"', 'x = "layout_search.trainers.engines.ddp:Engine"'),
        ('x = f"é {1} python -m platform.plan é"', 'x = f"é {1} layout-search plan é"'),
        ('x = "which platform.plan made"', 'x = "which layout-search plan made"'),
        ('x = "-m trainers.engines.ddp $PWD"', 'x = "-m layout_search.trainers.engines.ddp $PWD"'),
        ('x = "my trainers.toml, my platform.plans"', 'x = "my trainers.toml, my platform.plans"'),
    ],
)
def test_a_line_is_rewritten(line: str, expected: str) -> None:
    source = f"if True:\n{line}\n" if line.startswith(" ") else line
    assert rewritten(source, MODULES).splitlines()[-1] == expected


def test_an_import_that_binds_the_name_of_a_tree_is_refused() -> None:
    with pytest.raises(ValueError, match=r"line 1: `import trainers.spec.layout` has to be"):
        rewritten("import trainers.spec.layout", MODULES)


def test_nothing_in_the_package_names_a_tree_of_the_checkout(site: Path) -> None:
    files = list((site / "layout_search").rglob("*.py"))
    trees = [path.relative_to(site / "layout_search").with_suffix("") for path in files]
    modules = {".".join(path.parts).removesuffix(".__init__") for path in trees if path.parts[1:]}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").partition(".")[0] not in TREES, (path, node.lineno)
            elif isinstance(node, ast.Import):
                assert not [a.name for a in node.names if a.name in modules or a.name in ("trainers", "search_spaces")]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert "python -m platform." not in node.value, (path, node.lineno)
                module = node.value.partition(":")[0]
                assert "." not in module or module not in modules, (path, node.lineno)


def test_it_is_imported_without_packages_and_beside_the_user_s_own_names(site: Path, tmp_path: Path) -> None:
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "__init__.py").write_text("raise SystemExit('the own trainers of the user')")
    code = (
        "import sys, json, layout_search, platform; heavy = {'numpy', 'ray', 'torch'} & set(sys.modules);"
        "print(json.dumps([layout_search.__version__, sorted(heavy), hasattr(platform, 'node'), platform.__file__]))"
    )
    completed = _python(site, tmp_path, "-c", code)
    assert completed.returncode == 0, completed.stderr
    version, heavy, is_standard, file = json.loads(completed.stdout)
    assert version == re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]  # type: ignore[reportOptionalSubscript]
    assert not heavy and is_standard and Path(file).parent == Path(os.__file__).parent
    planned = _python(site, tmp_path, "-m", "layout_search", "plan", "gpt2", "--cluster", "8xH100")
    assert planned.returncode == 0 and "tok/s" in planned.stdout, planned.stderr


WITHOUT_EXTRAS = """
import json, re, runpy, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in set(sys.argv[1].split(",")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import layout_search
assert layout_search.plan("gpt2", cluster="8xH100", top=1).best["tokens_per_s"] > 0
sys.argv = ["layout-search", "plan", "bloom7b", "--cluster", "2x8xH100", "--tokens", "100B"]
runpy.run_module("layout_search", run_name="__main__")
"""


def test_planning_needs_none_of_the_packages_of_searches(site: Path, tmp_path: Path) -> None:
    """Checks a machine that has what `pip install layout-search` brings: no torch, no DeepSpeed, no Ray."""
    assert (site / "layout_search" / "py.typed").exists()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = [re.split(r"[\[>=]", name)[0] for name in project["optional-dependencies"]["train"]]
    modules = [{"nvidia-ml-py": "pynvml"}.get(name, name) for name in extra]
    assert {"torch", "ray", "deepspeed"} < set(modules)
    planned = _python(site, tmp_path, "-c", WITHOUT_EXTRAS, ",".join(modules))
    assert planned.returncode == 0 and "tok/s" in planned.stdout, planned.stderr


def test_the_command_says_its_version_and_refuses_what_it_does_not_know(site: Path, tmp_path: Path) -> None:
    assert _python(site, tmp_path, "-m", "layout_search", "--version").stdout.startswith("layout-search 0.")
    refused = _python(site, tmp_path, "-m", "layout_search", "seek")
    assert refused.returncode == 2 and "knows search, plan," in refused.stderr and "got 'seek'" in refused.stderr
    wrong = _python(site, tmp_path, "-m", "layout_search", "plan", "gpt2", "--cluster", "8xH1000")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: "), wrong.stderr


IMPORT = "import time; began = time.process_time(); import layout_search; print(time.process_time() - began)"


def _interpreter(minor: int) -> Path | None:
    """Returns a Python 3.`minor` of this machine; None where there is none."""
    if sys.version_info[:2] == (3, minor):
        return Path(sys.executable)
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = (Path(place) / f"python3.{minor}" for place in os.environ.get("PATH", "").split(os.pathsep))
    candidates = (*versions.glob(f"3.{minor}.*/bin/python3.{minor}"), *named)
    return next((path for path in candidates if path.exists() and "shims" not in path.parts), None)


@pytest.mark.slow
@pytest.mark.parametrize("minor", [11, *(pytest.param(minor, marks=pytest.mark.heavy) for minor in (12, 13))])
def test_pip_installs_it_and_leaves_nothing_of_it(minor: int, wheel: Path, tmp_path: Path) -> None:
    interpreter = _interpreter(minor)
    assert interpreter is not None, f"to run this test, install Python 3.{minor}: pyenv install 3.{minor}"

    def run(*words: str | Path) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        run = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        return run.stdout

    run(interpreter, "-m", "venv", "venv")
    python, pip = tmp_path / "venv" / "bin" / "python", ["-m", "pip", "--disable-pip-version-check"]
    run(python, *pip, "--version")  # what it leaves by being run at all

    def installed() -> set[Path]:
        return {path for path in (tmp_path / "venv").rglob("*") if "pip" not in path.parts}

    before = installed()
    run(python, *pip, "install", "--quiet", "--no-index", "--no-deps", wheel)
    assert run(tmp_path / "venv" / "bin" / "layout-search", "--version").startswith("layout-search 0.")
    (package,) = (tmp_path / "venv" / "lib").glob("python3.*/site-packages/layout_search")
    run(python, "-W", "error", "-m", "compileall", "-q", "-f", package)
    assert float(run(python, "-c", IMPORT)) < 0.5
    run(python, *pip, "uninstall", "--quiet", "--yes", "layout-search")
    assert installed() - before == set()


@pytest.mark.heavy
@pytest.mark.search
def test_ray_s_workers_find_its_code(site: Path, tmp_path: Path) -> None:
    arguments = ["gpt2", "--max-trials=1", "--repeats=0", "--studies", str(tmp_path)]
    completed = _python(site, tmp_path, "-m", "layout_search", "search", *arguments)
    assert completed.returncode in (0, NOT_RESOLVED), completed.stderr  # one layout has nothing to be compared with
    assert "tokens/s" in completed.stdout and "python -m platform" not in completed.stdout + completed.stderr
