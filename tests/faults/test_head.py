"""The watch over a cluster's head and this node's raylet, on real servers; others kill the real ones under a search."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from platform.cluster import head
from tests.loopback import closed_port

Server = Callable[[int], grpc.Server]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the times of a watch."""
    monkeypatch.setattr(head, "REFUSED_S", 0.5)
    monkeypatch.setattr(head, "SILENT_S", 1.0)
    monkeypatch.setattr(head, "_ANSWER_S", 0.5)
    monkeypatch.setattr(head, "_POLL_S", 0.1)


@pytest.fixture
def port() -> Iterator[int]:
    """Yields a port that is free until the test's own server listens on it."""
    with closed_port() as port:
        yield port


@pytest.fixture
def serve() -> Iterator[Server]:
    """Starts a gRPC server at a port of this machine."""
    started: list[grpc.Server] = []

    def start(port: int) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(1))
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop(None).wait()


def test_a_head_that_answers_is_left_alone(port: int, serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks many looks, each of which may wait for a busy machine, over longer than a head may be silent."""
    monkeypatch.setattr(head, "_ANSWER_S", 300.0)
    looks: list[OSError | None] = []
    error_of = head._error_of  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(head, "_error_of", lambda address: (looks.append(error_of(address)), looks[-1])[1])
    output: list[str] = []
    serve(port)
    address, until_s = f"127.0.0.1:{port}", time.monotonic() + 2 * head.SILENT_S
    with head.watched(address, address, output.append):
        while len(looks) < 10 or time.monotonic() < until_s:
            time.sleep(0.1)
    assert not output and not any(looks)


def test_a_head_whose_port_is_closed_is_gone_once(port: int, serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "SILENT_S", 300.0)  # a busy machine answers late
    output: list[str] = []
    address, called, server = f"127.0.0.1:{port}", threading.Event(), serve(port)
    with head.watched(address, address, lambda reason: (output.append(reason), called.set())[0]):
        time.sleep(0.3)
        server.stop(None).wait()
        assert called.wait(300)
        time.sleep(0.5)
    assert len(output) == 1 and output[0].startswith(f"the cluster's head at {address} has not answered for ")
    assert output[0].endswith("(Connection refused)")


def test_a_raylet_that_is_stopped_is_gone_too(port: int, serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connects the watch to a socket that nobody serves: the kernel accepts connections to a process that does
    nothing.
    """
    for name, seconds in (("_ANSWER_S", 2.0), ("SILENT_S", 8.0)):  # the head of a busy machine answers late
        monkeypatch.setattr(head, name, seconds)
    output: list[str] = []
    called = threading.Event()
    serve(port)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with head.watched(f"127.0.0.1:{port}", address, lambda reason: (output.append(reason), called.set())[0]):
            assert called.wait(300)
    assert output[0].startswith(f"Ray's own process on this machine (raylet) at {address} has not answered for ")


def test_a_raylet_that_has_ended_is_gone_at_once_while_the_head_answers(
    port: int, serve: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REFUSED_S", "SILENT_S", "_ANSWER_S"):
        monkeypatch.setattr(head, name, 300.0)
    output: list[str] = []
    called = threading.Event()
    serve(port)
    with closed_port() as closed:
        raylet = f"127.0.0.1:{closed}"
        with head.watched(f"127.0.0.1:{port}", raylet, lambda reason: (output.append(reason), called.set())[0]):
            assert called.wait(200)
    assert output[0].startswith(f"Ray's own process on this machine (raylet) at {raylet} has not answered for ")


def test_what_is_raised_meanwhile_waits_for_the_cause(port: int, serve: Server) -> None:
    """Checks that Ray's own error is held back, since it would end the command before the watch can say why, and is
    raised once the head answers.
    """
    began_s = time.monotonic()

    def again() -> None:
        time.sleep(0.3)
        serve(port)

    address = f"127.0.0.1:{port}"
    with pytest.raises(RuntimeError, match="of Ray"), head.watched(address, address, lambda reason: None):
        threading.Thread(target=again, daemon=True).start()
        raise RuntimeError("of Ray")
    assert time.monotonic() - began_s >= 0.3


def test_a_raylet_that_has_ended_is_said_before_ray_ends_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        assert head.loss_of(f"127.0.0.1:{raylet.getsockname()[1]}") == ""
    with closed_port() as closed:
        assert f"at 127.0.0.1:{closed} has ended" in head.loss_of(f"127.0.0.1:{closed}")
