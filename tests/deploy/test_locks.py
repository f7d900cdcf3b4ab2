"""What is installed: the locks, and the ways to them from make, the image and the cluster files."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


# Constraints of each lock, the later ones first, and the build of torch where PyPI has none.
LOCKS = {
    "requirements.lock": (["constraints.txt"], "+cpu"),
    "requirements-cuda.lock": (["constraints-cuda.txt"], ""),
    "requirements-v100.lock": (["constraints-v100.txt", "constraints.txt"], "+cu126"),
}


@pytest.mark.parametrize(
    ("smi", "file"),
    [
        ("GPU 0: NVIDIA H100 (UUID: GPU-1)", "requirements-cuda.lock"),
        ("GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-1)", "requirements-v100.lock"),
        ("", "requirements.lock"),
    ],
)
def test_make_installs_beside_gpus_what_the_figures_were_measured_on(tmp_path: Path, smi: str, file: str) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{smi}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["make", "--dry-run", "--always-make", "setup"]
    printed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"scripts/install.sh \S+ (\S+)", printed) == [file]


def test_the_measured_versions_are_those_of_the_readme_and_the_rest_is_as_for_cpus() -> None:
    measured, others = _pins("constraints-cuda.txt"), _pins()
    words = re.search(r"with torch (\S+) and transformers (\S+), which `make setup`", (ROOT / "README.md").read_text())
    assert words and (measured["torch"], measured["transformers"]) == words.groups()
    differ = {name for name in measured.keys() | others.keys() if measured.get(name) != others.get(name)}
    assert differ == {"torch", "transformers", "setuptools", "huggingface_hub"}, "what the two need"


@pytest.mark.parametrize("file", LOCKS)
def test_locks_hold_every_pin_with_its_hash(file: str) -> None:
    constraints, build = LOCKS[file]
    versions = {name: line.split()[0].partition("==")[2] for name, line in _locked(file).items()}
    pins = {name: version for constraint in reversed(constraints) for name, version in _pins(constraint).items()}
    pinned = {name.lower().replace("_", "-").replace(".", "-"): version for name, version in pins.items()}
    assert versions["torch"] == pinned["torch"].partition("+")[0] + build
    assert {name: versions.get(name) for name in pinned} == {**pinned, "torch": versions["torch"]}
    assert any(name.startswith("nvidia-cudnn") for name in versions) == (build != "+cpu")


def test_for_v100_torch_and_its_libraries_differ_and_nothing_else() -> None:
    differ = {line for file in ("requirements-v100.lock", "requirements.lock") for line in _locked(file).values()}
    differ -= set(_locked("requirements-v100.lock").values()) & set(_locked("requirements.lock").values())
    assert {line.partition("==")[0] for line in differ} == _pins("constraints-v100.txt").keys()
    assert _pins("constraints-v100.txt")["torch"] == f"{_pins()['torch']}+cu126"


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", ["requirements-v100.lock"])
def test_pypi_has_all_files_of_a_lock_but_builds_of_torch(file: str, tmp_path: Path) -> None:
    """Others are installed by set-ups; no machine of the tests is set up by this lock."""
    lines = [line for line in _locked(file).values() if not re.match(r"torch==\S+\+", line)]
    (tmp_path / "lock").write_text("\n".join(lines))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
    pip += ["--require-hashes", "--report", str(tmp_path / "report.json"), "--requirement", str(tmp_path / "lock")]
    completed = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert len(json.loads((tmp_path / "report.json").read_text())["install"]) == len(lines)


@pytest.mark.slow
def test_a_build_of_torch_has_its_libraries_before_others_are_built_with_it(tmp_path: Path) -> None:
    """Installs by the script itself a project whose one dependency imports torch while it is built, as DeepSpeed does,
    with a torch that cannot be imported without its libraries, as builds for CUDA.
    """
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    _write_wheel(wheels, "cudalibs", "1.0", module="")
    _write_wheel(wheels, "torch", "2.13.0+cu126", module="import cudalibs\n", requires="cudalibs==1.0")
    setup = "import setuptools, torch\nsetuptools.setup(name='ops', version='1.0')\n"
    with tarfile.open(wheels / "ops-1.0.tar.gz", "w:gz") as archive:
        for name, content in (("setup.py", setup), ("PKG-INFO", "Metadata-Version: 2.1\nName: ops\nVersion: 1.0\n")):
            entry = tarfile.TarInfo(f"ops-1.0/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()))
    checkout = tmp_path / "checkout"
    (checkout / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "install.sh", checkout / "scripts")
    (checkout / "pyproject.toml").write_text(
        "[project]\nname = 'searcher'\nversion = '1.0'\ndependencies = ['ops', 'torch']\noptional-dependencies = {}\n"
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        "[tool.setuptools]\npackages = []\n"
    )
    hashed = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(wheels.iterdir())}
    lines = [f"{'=='.join(path.name.split('-')[:2])} --hash=sha256:{digest}" for path, digest in hashed.items()]
    lines = [line.replace(".tar.gz", "") for line in lines]
    tools = [_locked("requirements-v100.lock")[name] for name in ("packaging", "pip", "setuptools", "wheel")]
    (checkout / "requirements.lock").write_text("\n".join([*lines, *tools, ""]))
    # Sees pip and setuptools of this environment, and installs beside them.
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (site / "tools.pth").write_text(sysconfig.get_path("purelib"))
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    python = tmp_path / "venv" / "bin" / "python"
    command = [checkout / "scripts" / "install.sh", python, checkout / "requirements.lock"]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    found = "import importlib.metadata as of; print(*(of.version(name) for name in ('torch', 'ops', 'searcher')))"
    printed = subprocess.run([python, "-c", found], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["2.13.0+cu126", "1.0", "1.0"]


def test_every_install_path_names_a_lock() -> None:
    paths = [ROOT / "Makefile", ROOT / "cluster.yaml", ROOT / "deploy/docker/Dockerfile", *ROOT.glob("deploy/*/*.yaml")]
    paths += [ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
    named = [
        (path.name, file)
        for path in paths
        for file in re.findall(r"(?:install\.sh \S*python |LOCK=)([\w.-]+)", path.read_text())
    ]
    assert named and {file for _, file in named} == {*LOCKS, "constraints.txt"}, "every lock is on some path"
    assert [path for path, file in named if file == "constraints.txt"] == ["Makefile"], "for other machines"


def test_no_install_path_takes_a_file_by_its_name_alone(tmp_path: Path) -> None:
    """Sees pip refuse a package that the lock does not hold, and a file with another hash."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    _write_wheel(wheels, "six", _pins()["six"])
    _write_wheel(wheels, "unlocked", "1.0")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "install",
        "--quiet",
        "--no-index",
        "--find-links",
        str(wheels),
        "--dry-run",
    ]
    pip += ["--ignore-installed", "--no-deps", "--constraint", str(ROOT / "requirements.lock")]
    for package, sentence in (("six", "DO NOT MATCH THE HASHES"), ("unlocked", "versions pinned with ==")):
        completed = subprocess.run([*pip, package], capture_output=True, text=True, check=False)
        assert completed.returncode != 0 and sentence in completed.stderr
    paths = [ROOT / "Makefile", ROOT / "cluster.yaml", ROOT / "deploy/docker/Dockerfile", *ROOT.glob("deploy/*/*.yaml")]
    for path in paths:
        assert not re.findall(r"^[^#\n]*pip install", path.read_text(), flags=re.MULTILINE), f"{path} has its own"


def _pins(file: str = "constraints.txt") -> dict[str, str]:
    return dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / file).read_text(), flags=re.MULTILINE))


def _locked(file: str) -> dict[str, str]:
    """Returns the lines of a lock by the packages' names."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    locked = [re.fullmatch(r"([a-z0-9-]+)==\S+(?: --hash=sha256:[0-9a-f]{64})+", line) for line in lines]
    assert all(locked), "a line a package: name, version and the hashes of its files"
    return {requirement[1]: requirement[0] for requirement in locked if requirement}


def _write_wheel(folder: Path, name: str, version: str, module: str | None = None, requires: str = "") -> None:
    """Writes the wheel of a package: an empty one, or one with the source of its only module."""
    info = f"{name}-{version}.dist-info"
    required = f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}")
        if module is not None:
            wheel.writestr(f"{name}.py", module)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
