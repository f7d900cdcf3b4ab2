"""Plans on a busy machine: the progress line is off, except in its own test."""

import pytest


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr("platform.common.progress.FIRST_S", 3600.0)
