"""Big libraries, Ray workers, pytest's two spellings and `python -P` all live with our `platform` folder."""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
TINY = "tests/platform/test_names.py"

IMPORT_ALL = """
def import_all():
    import platform
    import deepspeed, mlflow, ray, torch, transformers
    assert platform.system() == platform.uname().system and callable(platform.platform)
    return [module.__name__ for module in (deepspeed, mlflow, ray, torch, transformers)]
"""
ALL = "['deepspeed', 'mlflow', 'ray', 'torch', 'transformers']"

IN_A_RAY_WORKER = f"""
import sys, tempfile, ray
{IMPORT_ALL}
from trainers.spec.layout import Layout
@ray.remote
def in_worker(layout):
    import platform, subprocess, sys
    child = subprocess.run([sys.executable, "-c", "import platform; print(platform.system())"], capture_output=True,
                           text=True, cwd={str(ROOT)!r}, check=True)
    assert child.stdout.strip() == platform.system()
    return [import_all(), layout.label]
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
print(*ray.get(in_worker.remote(Layout(engine="ddp")), timeout=880), sep="\\n")
"""

NO_HEAVY_IMPORTS = """
import sys
import search_spaces
import trainers.engines.deepspeed_config
from trainers import text
from trainers.engines import create
from trainers.records import journal_lines, measurement, training_lines
from trainers.spec import batch, cluster, codec, engines, layout, model, recipe, support
for space in search_spaces.built_in_spaces():
    space.candidates(8)
print(sorted({"torch", "ray", "deepspeed", "transformers", "mlflow", "numpy", "pyarrow"} & set(sys.modules)))
"""


def _run(command: Sequence[str], *, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    child = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=900
    )
    assert child.returncode == 0, f"{command}\n{child.stdout}\n{child.stderr}"
    return child.stdout


def test_the_big_libraries_import_from_the_root() -> None:
    output = _run([sys.executable, "-c", f"{IMPORT_ALL}\nprint(import_all())"])
    assert output.splitlines()[-1] == ALL


@pytest.mark.ray
@pytest.mark.heavy
def test_the_big_libraries_import_in_a_ray_worker() -> None:
    # pytest's own folders are too long for Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        output = _run([sys.executable, "-c", IN_A_RAY_WORKER, folder], environment={"RAY_AUTH_MODE": "disabled"})
    assert output.splitlines()[-2:] == [ALL, "DDP, eager"]


def test_bare_pytest_and_python_m_pytest_find_our_modules() -> None:
    bare = shutil.which("pytest", path=str(Path(sys.executable).parent)) or shutil.which("pytest")
    assert bare is not None
    for command in ([bare], [sys.executable, "-m", "pytest"]):
        assert " passed" in _run([*command, "-q", "-p", "no:cacheprovider", TINY])


def test_the_pth_finds_our_modules_from_any_folder_and_under_safe_path(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = str(tmp_path / "env" / "bin" / "python")
    before = subprocess.run([python, "-P", "-c", "import platform.common.errors"], cwd=ROOT, capture_output=True)
    assert before.returncode != 0
    _run([python, str(ROOT / "scripts" / "install_pth.py")], cwd=tmp_path)
    report = "import platform, platform.common.errors as s; print(platform.python_version(), s.__file__)"
    for options in (["-P"], []):
        version, file = _run([python, *options, "-c", report], cwd=tmp_path).split()
        assert version == ".".join(map(str, sys.version_info[:3]))
        assert Path(file) == ROOT / "platform" / "common" / "errors.py"
        assert _run([python, *options, "-m", "platform.common.errors"], cwd=tmp_path) == ""
        assert _run([python, *options, "-m", "platform"], cwd=tmp_path).strip()


WHERE = (
    "import platform.common.errors, search_spaces, trainers;"
    " print(*(m.__file__ for m in (platform.common.errors, search_spaces, trainers)), sep='\\n')"
)


def test_everything_comes_from_one_checkout(tmp_path: Path) -> None:
    """Uses an environment that was set up for one checkout in a real copy of that checkout."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = str(tmp_path / "env" / "bin" / "python")
    _run([python, str(ROOT / "scripts" / "install_pth.py")], cwd=tmp_path)
    other = tmp_path / "other"
    for name in ("platform", "search_spaces", "trainers"):
        shutil.copytree(ROOT / name, other / name, ignore=shutil.ignore_patterns("__pycache__"))
    script = tmp_path / "script.py"
    script.write_text(WHERE)

    def roots(*command: str, cwd: Path, path: str = "") -> set[Path]:
        files = _run([python, *command], cwd=cwd, environment={"PYTHONPATH": path}).split()
        assert len(files) == 3
        return {next(root for root in (other, ROOT) if Path(file).is_relative_to(root)) for file in files}

    assert roots("-c", WHERE, cwd=other) == {other}
    assert roots("-c", WHERE, cwd=tmp_path) == {ROOT}
    assert roots("-P", "-c", WHERE, cwd=other) == {ROOT}
    assert roots(str(script), cwd=other) == {ROOT}, "a script's folder is searched, not the working one"
    assert roots("-c", WHERE, cwd=tmp_path, path=str(other)) == {other}
    mixed = f"import platform; platform.__path__ = [{str(ROOT / 'platform')!r}]; {WHERE}"
    completed = subprocess.run([python, "-c", mixed], cwd=other, capture_output=True, text=True)
    assert completed.returncode == 2 and completed.stderr.count("\n") == 1 and completed.stdout == ""
    assert (
        "two checkouts are mixed" in completed.stderr
        and str(other) in completed.stderr
        and str(ROOT) in completed.stderr
    )


def test_value_types_spaces_and_registry_cost_no_big_library() -> None:
    assert _run([sys.executable, "-c", NO_HEAVY_IMPORTS]).strip() == "[]"
