"""Sessions with played trials, for the command above them."""

from tests.search.loop.conftest import backend, clock, make, pair, played, study

__all__ = ["backend", "clock", "make", "pair", "played", "study"]
