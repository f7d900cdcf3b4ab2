"""The made-up study of the loop's tests."""

from tests.loop.conftest import backend, clock, make, study

__all__ = ["backend", "clock", "make", "study"]
