#!/usr/bin/env bash
# Installs this checkout and what it needs into a Python's environment: the versions of a lock, each file by its hash.
#   scripts/install.sh .venv/bin/python requirements.lock [EXTRA ...]    EXTRA: an optional dependency of pyproject.toml
# Constraints without hashes are taken too, where the lock has no files for a machine.
set -euo pipefail
python=$(realpath --no-symlinks "$(command -v "$1")") lock=$(realpath "$2") && shift 2
cd "$(dirname "$0")/.."
install() { "$python" -m pip --disable-pip-version-check install --quiet "$@"; }
locked() { install --constraint "$lock" "$@"; }

# pip first: before 26 it takes no hashes from constraints.
if grep --quiet -e --hash= "$lock"; then
    grep -E '^(packaging|pip|setuptools|wheel)==' "$lock" | install --no-deps --requirement /dev/stdin
else
    locked pip setuptools wheel
fi
# torch next: DeepSpeed is built from source, and its build imports torch. A build such as 2.13.0+cpu is on torch's own
# index, which is asked for nothing else, and only where no nearer place has that build.
build=$(sed -nE 's/^torch==[^ +]+\+([a-z0-9]+).*/\1/p' "$lock")
if [[ -n $build ]] && ! locked --no-deps torch 2>/dev/null; then
    locked --no-deps --extra-index-url "https://download.pytorch.org/whl/$build" torch
fi
locked torch # again for what it requires: without CUDA's libraries a build for CUDA cannot be imported
# The requirements as a list: a checkout itself has no hash.
"$python" - "$@" <<'PYTHON' | locked --no-build-isolation --requirement /dev/stdin
import pathlib, sys, tomllib

project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
print(*project["dependencies"], *(line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]), sep="\n")
PYTHON
install --no-deps --no-build-isolation --editable .
