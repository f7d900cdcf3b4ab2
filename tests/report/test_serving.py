"""`report --serve`: the page at an address of this machine, renewed with the journal while a search runs."""

import threading
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path

import pytest

from platform.common.errors import InputError
from platform.report.serving import Pages, server
from platform.study.result.result import StudyResult
from platform.study.study import Study, read
from tests.samples import header, measurement
from trainers.records.journal import Measured


@pytest.fixture
def study(tmp_path: Path) -> Generator[Study]:
    study = Study.create(tmp_path, "one")
    study.record(header())
    study.record(Measured(measurement=measurement(tokens_per_s=1234.0)))
    yield study


def _get(address: str, host: str = "127.0.0.1:1") -> str:
    request = urllib.request.Request(address, headers={"Host": host})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def test_the_page_follows_the_journal_and_answers_this_machine_alone(study: Study) -> None:
    counts: list[Path] = []

    def result(folder: Path) -> StudyResult:
        counts.append(folder)
        return StudyResult.of(read(folder, last=True)[0])

    pages = Pages([study.path], result)
    with server(pages, 0) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            host, port = listening.server_address[:2]
            address = f"http://{host!s}:{port}/"
            assert host == "127.0.0.1"
            first = _get(address)
            assert "1,234" in first and _get(address) == first and len(counts) == 1, "made once"
            study.record(Measured(measurement=measurement(micro_batch=2, tokens_per_s=4321.0)))
            assert "4,321" in _get(address, "localhost:1")
            for path, name in (("", "evil.example:80"), ("other", "127.0.0.1:1")):
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    _get(address + path, name)
            with pytest.raises(
                InputError, match=f"port {port} of 127.0.0.1 cannot be used .*: give another to --serve"
            ):
                server(pages, int(port))
        finally:
            listening.shutdown()
            thread.join(timeout=10)


@pytest.mark.parametrize("running", [True, False])
def test_the_page_loads_itself_again_while_a_search_runs(
    study: Study, running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.report.serving.is_locked", lambda path: running)
    text = Pages([study.path], lambda folder: StudyResult.of(read(folder, last=True)[0])).text()
    assert ('http-equiv="refresh" content="10"' in text) is running
