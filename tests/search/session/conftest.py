"""The made-up study of the loop's tests, and sessions on it."""

from tests.search.loop.conftest import backend, clock, make, pair, played, study

__all__ = ["backend", "clock", "make", "pair", "played", "study"]
