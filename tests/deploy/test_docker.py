"""The Dockerfile copies what a search needs, and no CUDA comes with it. No image is built here."""

import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "docker" / "Dockerfile"
TEXT = FILE.read_text()
COPIED = [words.split() for words in re.findall(r"^COPY (.*)$", TEXT, re.MULTILINE)]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Returns a copy of the folder that the image has, made of files of this checkout alone."""
    for *sources, target in COPIED:
        for pattern in sources:
            for source in sorted(ROOT.glob(pattern)):
                to = tmp_path / target / ("" if source.is_dir() else source.name)
                to.parent.mkdir(parents=True, exist_ok=True)
                if source.is_dir():
                    shutil.copytree(source, tmp_path / target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(source, to)
    return tmp_path


def test_a_search_starts_from_what_is_copied(image: Path) -> None:
    """Checks that the search's module lies in the copied folder too, since this environment leads to a checkout from
    which the search would start as well.
    """
    code = "import sys, platform.search.__main__ as search; print(search.__file__); sys.exit(search.main(['--list']))"
    completed = subprocess.run([sys.executable, "-c", code], cwd=image, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith(str(image)) and "bloom7b" in completed.stdout


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    ignored = Path(f"{FILE}.dockerignore").read_text().splitlines()
    exceptions = [line[1:] for line in ignored if line.startswith("!")]
    for *sources, _ in COPIED:
        for source in sources:
            assert list(ROOT.glob(source)), source
            assert any(fnmatch.fnmatch(source, exception) for exception in exceptions), source


def test_the_image_has_no_cuda_of_its_own_and_its_commands_fit_the_base() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", TEXT, re.MULTILINE)
    assert re.fullmatch(r"python:3\.11-slim-\w+", base)
    packages = re.findall(r"apt-get install (.*) \\$", TEXT, re.MULTILINE)
    assert packages and not re.search("cuda|cudnn|nvidia", " ".join(packages))
    assert "LD_LIBRARY_PATH" not in re.sub(r"^#.*$", "", TEXT, flags=re.MULTILINE)


def test_the_image_s_user_is_not_root_and_may_write_studies() -> None:
    lines = TEXT.splitlines()
    user = next(number for number, line in enumerate(lines) if re.fullmatch(r"USER [1-9]\d*:[1-9]\d*", line))
    folder = lines.index("RUN mkdir /studies && chown 1000:1000 /studies")
    assert folder < user < lines.index("VOLUME /studies"), "a volume keeps the owner that the folder had before it"
    assert not [line for line in lines[user:] if line.startswith("RUN")]


def test_logs_and_studies_lie_on_the_mounted_folder() -> None:
    assert "VOLUME /studies" in TEXT and '"--studies", "/studies"' in TEXT
    page = (ROOT / "docs" / "clusters.md").read_text()
    assert '--volume "$PWD/studies:/studies"' in page
