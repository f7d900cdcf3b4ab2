# pyright: reportPrivateUsage=false
"""The Ray cluster that a search joins where none is named."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform.cluster import connection
from platform.common.errors import InputError
from tests.loopback import closed_port


@pytest.fixture
def address() -> Iterator[str]:
    """Yields an address where a server listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> Path:
    """Returns the file that names the cluster whose head runs on this machine."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    path = tmp_path / "ray" / "ray_current_cluster"
    path.parent.mkdir()
    path.write_text(f"{address}\n")
    return path


def test_this_user_s_cluster_is_joined_and_named(
    current: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert connection._cluster_of_this_head() == address
    assert f"Runs on the Ray cluster at {address}, which {current} names" in " ".join(capsys.readouterr().err.split())


def test_another_user_s_is_not(
    current: Path, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checks that another user's file is ignored: any user of the machine may write it first, and would then be sent
    the search's code and data.
    """
    if os.getuid() == 0:
        os.chown(current, 54321, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert connection._cluster_of_this_head() is None
    output = " ".join(capsys.readouterr().err.split())
    assert f"{current} belongs to user" in output and "--address joins one" in output and address not in output


def test_a_link_to_a_file_of_this_user_s_is_not_followed(current: Path) -> None:
    target = current.rename(current.with_name("elsewhere"))
    current.symlink_to(target)
    assert connection._cluster_of_this_head() is None


def test_a_cluster_that_is_gone_is_none(current: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closed_port() as port:
        current.write_text(f"127.0.0.1:{port}")
        assert connection._cluster_of_this_head() is None
    assert not capsys.readouterr().err


def test_what_ray_cannot_do_is_told_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.check_paths()
    for name in ("TMPDIR", "RAY_TMPDIR"):
        monkeypatch.setenv(name, f"/{'x' * 38}")
        connection.check_paths()
        monkeypatch.setenv(name, f"/{'x' * 39}")
        with pytest.raises(InputError, match=f"stand below {name}, whose path may have 39 bytes, got 40"):
            connection.check_paths()
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")  # Ray looks at the other one where this is not set
    connection.check_paths()
    monkeypatch.setattr(sys, "prefix", "/home/a b/.venv")
    with pytest.raises(InputError, match=r"starts no workers from '/home/a b/.venv', a path with a blank"):
        connection.check_paths()
