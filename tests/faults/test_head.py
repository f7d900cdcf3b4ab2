"""The watch over a cluster's head, on real sockets; `test_cluster.py` kills a real head under a search."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from platform.cluster import head


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times of a watch, short."""
    monkeypatch.setattr(head, "REFUSED_S", 0.5)
    monkeypatch.setattr(head, "_POLL_S", 0.1)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Somebody who listens."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def _address(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_head_that_answers_is_left_alone(listener: socket.socket) -> None:
    said: list[str] = []
    with head.watched(_address(listener), said.append):
        time.sleep(1.2)
    assert not said


def test_a_head_whose_port_is_closed_is_gone_once(listener: socket.socket) -> None:
    said: list[str] = []
    address, called = _address(listener), threading.Event()
    with head.watched(address, lambda why: (said.append(why), called.set())[0]):
        time.sleep(0.3)
        listener.close()
        assert called.wait(10)
        time.sleep(0.5)
    assert len(said) == 1 and said[0].startswith(f"the cluster's head at {address} has not answered for ")
    assert said[0].endswith("(Connection refused)")


def test_what_is_raised_meanwhile_waits_for_the_cause(listener: socket.socket) -> None:
    """Ray's own error would end the command before the watch can say why; once the head answers, it is raised."""
    address, port = _address(listener), listener.getsockname()[1]
    began_s, back = time.monotonic(), list[socket.socket]()

    def again() -> None:
        time.sleep(0.3)
        back.append(socket.create_server(("127.0.0.1", port)))

    with pytest.raises(RuntimeError, match="of Ray"), head.watched(address, lambda why: None):
        listener.close()
        threading.Thread(target=again, daemon=True).start()
        raise RuntimeError("of Ray")
    assert time.monotonic() - began_s >= 0.3
    back[0].close()
