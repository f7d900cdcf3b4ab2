"""Plans on a busy machine: no line of progress among their sentences, but in the test of that line."""

import pytest


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr("platform.common.progress.FIRST_S", 3600.0)
