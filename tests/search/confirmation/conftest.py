"""The made-up study of the loop's tests."""

from tests.search.loop.conftest import backend, clock, make, study

__all__ = ["backend", "clock", "make", "study"]
