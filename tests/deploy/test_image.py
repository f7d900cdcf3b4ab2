"""The image, built of the Dockerfile by buildah, and a search in it. Its base is a Debian from debootstrap that stands
in for the real one, which comes from a registry.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from platform.common.errors import NOT_RESOLVED
from platform.study.journal import Tail
from tests import needs
from tests.whole_searches.session import ROOT
from trainers.records.journal import End, Resume

pytestmark = [pytest.mark.search, pytest.mark.heavy, pytest.mark.timeout(7200)]
RELEASE = "bookworm"
PACKAGES = "ca-certificates,python3,python3-dev,python3-venv"
"""Packages of the base, which the real one has too: Python 3.11 with its headers, and certificates."""
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
OPTIONS = ["--shm-size=4g", "--network=none"]
"""Shared memory for Ray's objects, in place of Docker's `--ipc=host`; and no network, since a search needs none."""
USER = 1234
"""The user who runs the search, as with `docker run --user`: one whom the image does not know."""
ALONE = """
umount /sys/fs/cgroup/unified 2>/dev/null  # crun refuses a machine that has both versions of control groups mounted
exec "$@"
"""
STOPPED = """
"$@" & search=$!
until grep -q '"outcome":"ok"' /studies/bloom7b/journal.jsonl 2>/dev/null; do kill -0 $search || exit; sleep 0.2; done
kill -TERM $search; wait $search  # as `docker stop`, which signals the container's command
"""
SEARCH = ["bloom7b", "--name=bloom7b", "--auto-resume", "--max-trials=2", "--repeats=0"]


def _pip_settings() -> dict[str, str]:
    """Returns the settings of this machine's pip, which name the places where it looks for packages."""
    completed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    return dict(re.findall(r"^global\.([\w-]+)='(.*)'$", completed.stdout, re.MULTILINE))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """The image, in a store of the test's."""

    buildah: Sequence[str]
    name: str = "layout-search"

    def entrypoint(self) -> list[str]:
        """Returns the command that `docker run` would run."""
        completed = _checked([*self.buildah, "inspect", "--type", "image", self.name])
        return json.loads(completed)["OCIv1"]["config"]["Entrypoint"]

    def run(self, command: Sequence[str], *volumes: str, user: int = USER) -> subprocess.CompletedProcess[str]:
        """Runs a command in a new container of it, with processes, mounts and a network of its own, as Docker does."""
        container = _checked([*self.buildah, "from", *OPTIONS, self.name]).strip()
        try:
            mounts: list[str] = []
            for volume in volumes:  # buildah would put an empty folder in place of a volume that the image declares
                _checked([*self.buildah, "config", f"--volume={volume.split(':')[1]}-", container])
                mounts.append(f"--volume={volume}")
            options = ["--isolation=oci", f"--user={user}:{user}", *mounts]
            inside = [*self.buildah, "run", *options, container, "--", *command]
            return subprocess.run(
                ["unshare", "--mount", "bash", "-c", ALONE, "bash", *inside],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=1800,
                check=False,
            )
        finally:
            _checked([*self.buildah, "rm", container])


def _checked(command: Sequence[str]) -> str:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, f"{' '.join(command)}: {completed.stderr[-3000:]}"
    return completed.stdout


@pytest.fixture(scope="module")
def image() -> Iterator[Built]:
    """Yields the image on the base that stands in for the real one; base, store and containers are removed
    afterwards.
    """
    buildah, debootstrap, _ = needs.tools(["buildah", "debootstrap", "crun"], "buildah debootstrap crun")
    needs.root("changing the root folder, by which debootstrap installs packages")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="image", dir="/var/tmp")))
        buildah_command = [buildah, f"--root={folder}/root", f"--runroot={folder}/run"]
        stack.callback(subprocess.run, [*buildah_command, "rmi", "--all", "--force"], capture_output=True, check=False)
        stack.callback(subprocess.run, [*buildah_command, "rm", "--all"], capture_output=True, check=False)
        base = folder / "base"
        _checked([debootstrap, "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(base)])
        # Packages come from where this machine takes them.
        settings = _pip_settings()
        (base / "etc" / "pip.conf").write_text(
            "\n".join(["[global]", *(f"{name} = {value}" for name, value in settings.items())]) + "\n"
        )
        for needed_path in (Path("/", CERTIFICATES), *(Path(path) for path in settings.get("constraint", "").split())):
            copied_path = base / needed_path.relative_to("/")
            copied_path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(needed_path, copied_path)
        places = [place for value in settings.values() for place in value.split()]
        # An index in a folder refers to files beside it.
        folders = {Path(place.removeprefix("file://")).parent if "://" in place else Path(place) for place in places}
        mounts = [
            f"--volume={mounted_folder}:{mounted_folder}:ro"
            for mounted_folder in sorted(folders)
            if mounted_folder.is_dir()
        ]
        container = _checked([*buildah_command, "from", "scratch"]).strip()
        _checked([*buildah_command, "add", "--quiet", container, str(base), "/"])
        _checked([*buildah_command, "commit", "--quiet", "--rm", container, "localhost/base"])
        shutil.rmtree(base)
        built = Built(buildah=buildah_command)
        file = ROOT / "deploy" / "docker" / "Dockerfile"
        command = [
            *buildah_command,
            "build",
            "--isolation=chroot",
            "--format=docker",
            f"--ignorefile={file}.dockerignore",
            *mounts,
        ]
        _checked([*command, "--build-arg=BASE=localhost/base", f"--file={file}", f"--tag={built.name}", str(ROOT)])
        yield built


def test_the_image_s_command_is_the_search(image: Built) -> None:
    completed = image.run([*image.entrypoint(), "--help"])
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith("usage: python -m platform.search")


def test_no_cuda_lies_beside_torch_s_own(image: Built) -> None:
    completed = image.run(["find", "/", "-xdev", "-name", "libcud*", "-not", "-path", "/opt/venv/*"], user=0)
    assert (completed.returncode, completed.stdout) == (0, ""), completed.stderr


def test_a_stopped_search_has_its_study_on_the_mounted_folder_and_the_same_command_goes_on(
    image: Built, tmp_path: Path
) -> None:
    command, journal = [*image.entrypoint(), *SEARCH], tmp_path / "bloom7b" / "journal.jsonl"
    os.chown(tmp_path, USER, USER)
    first = image.run(["bash", "-c", STOPPED, "bash", *command], f"{tmp_path}:/studies")
    assert first.returncode == 130 and "Interrupted. What was measured is kept" in first.stderr, first.stderr
    assert "no bytecode" not in first.stderr
    before = Tail(journal).read()
    assert [line.exit_code for line in before if isinstance(line, End)] == [130]
    second = image.run(command, f"{tmp_path}:/studies")
    assert second.returncode in (0, NOT_RESOLVED), second.stderr  # beside other work no winner may be named
    assert "layouts tried for miniature" in second.stdout, second.stdout
    after = Tail(journal).read()
    assert list(after[: len(before)]) == list(before)
    assert [line for line in after[len(before) :] if isinstance(line, Resume)]
    assert second.returncode or json.loads((tmp_path / "bloom7b" / "layout.json").read_text())
    assert (tmp_path / "mlflow.db").exists()
    assert {path.stat().st_uid for path in tmp_path.rglob("*")} == {USER}
