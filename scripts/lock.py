"""Writes `requirements.lock` and `requirements-cuda.lock`: versions of the constraints with hashes of their files.

    python -m scripts.lock                                       # both
    python -m scripts.lock --find-links FOLDER cpu               # torch's CPU wheel out of a folder

The hashes are what the package index says of the files that pip would take here, on Linux with x86-64 and Python 3.11;
nothing is installed. They stand in files of their own since an editable install takes no constraints with hashes.
DeepSpeed comes last in an installation, for its build imports torch:

    lock=requirements-cuda.lock          # or requirements.lock with --extra-index-url of torch's CPU builds
    grep -v '^deepspeed' $lock > rest.lock
    pip install --require-hashes --no-deps -r rest.lock
    pip install --require-hashes --no-deps --no-build-isolation -r $lock
    pip install --no-deps --no-build-isolation --editable .
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import platform

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LOCKS = {"cpu": "requirements.lock", "cuda": "requirements-cuda.lock"}
CONSTRAINTS = {"cpu": "constraints.txt", "cuda": "constraints-cuda.txt"}
_HEADER = """# Made by `python -m scripts.lock` from {constraints}: {what}, Linux x86-64, Python 3.11.
# scripts/lock.py says how it is installed. A line a package, so that `grep` can take one out.
"""
_WHAT = {
    "cpu": "torch's CPU build, which is no file of PyPI: pip needs --extra-index-url " + CPU_INDEX,
    "cuda": "torch's CUDA 13 build with NVIDIA's libraries",
}


def pins(constraints: Path) -> dict[str, str]:
    """Returns the version of every pin by name.

    Raises:
        ValueError: a line is no pin.
    """
    versions: dict[str, str] = {}
    for line in constraints.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        name, equals, version = line.partition("==")
        if not equals:
            raise ValueError(f"{constraints} must hold lines NAME==VERSION, got {line!r}")
        versions[name] = version
    return versions


def reported(requirements: Sequence[str], options: Sequence[str]) -> list[dict[str, Any]]:
    """Returns what pip would install for the requirements: one object a package, with version and file.

    Raises:
        ValueError: pip cannot tell; its own words.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--no-build-isolation", "--report", str(report), *options, *requirements]
        completed = subprocess.run(command, capture_output=True, text=True)
        if completed.returncode:
            raise ValueError(f"pip could not look the packages up: {completed.stderr.strip().splitlines()[-1]}")
        return json.loads(report.read_text(encoding="utf-8"))["install"]


def lines_of(installed: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the lock's lines, by name.

    Raises:
        ValueError: the index gives no SHA-256 of a file.
    """
    lines: dict[str, str] = {}
    for package in installed:
        name = package["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
        sha256 = package["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if sha256 is None:
            raise ValueError(f"the index gives no SHA-256 of {package['download_info']['url']}")
        lines[name] = f"{name}=={package['metadata']['version']} --hash=sha256:{sha256}"
    return [lines[name] for name in sorted(lines)]


def lock(kind: str, options: Sequence[str]) -> Path:
    """Writes one lock, and returns its file.

    Raises:
        ValueError: pip or the index does not tell what it needs.
    """
    constraints = ROOT / CONSTRAINTS[kind]
    versions = pins(constraints)
    torch = versions.pop("torch")
    exact = [f"{name}=={version}" for name, version in versions.items()]
    if kind == "cpu":
        index_options = options or ["--index-url", CPU_INDEX]
        installed = [*reported(exact, ["--no-deps"]), *reported([f"torch=={torch}+cpu"], ["--no-deps", *index_options])]
    else:
        # NVIDIA's libraries are no pins of ours: torch's own requirements fix them.
        with_libraries = reported([f"torch=={torch}"], ["--constraint", str(constraints)])
        installed = [*with_libraries, *reported(exact, ["--no-deps"])]
    path = ROOT / LOCKS[kind]
    path.write_text(
        _HEADER.format(constraints=CONSTRAINTS[kind], what=_WHAT[kind]) + "\n".join(lines_of(installed)) + "\n",
        encoding="utf-8",
    )
    return path


def main() -> int:
    """Runs the command. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="cpu or cuda (default: both)")
    parser.add_argument("--find-links", metavar="FOLDER", help="a folder with torch's CPU wheel, in place of its index")
    options = parser.parse_args()
    if wrong := [kind for kind in options.kinds if kind not in LOCKS]:
        print(f"error: a lock is of cpu or cuda, got {wrong[0]!r}", file=sys.stderr)
        return 2
    if (platform.system(), platform.machine(), sys.version_info[:2]) != ("Linux", "x86_64", (3, 11)):
        print("error: locks are made on Linux with x86-64 and Python 3.11, whose files they name", file=sys.stderr)
        return 2
    try:
        for kind in options.kinds or LOCKS:
            print(lock(kind, ["--no-index", "--find-links", options.find_links] if options.find_links else []))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
