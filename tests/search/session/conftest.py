"""The made-up study of the loop's tests, and sessions on it."""

from tests.search.loop.conftest import backend, clock, make, pair, played, study
from tests.search.session.refusals import plain_environment, refused

__all__ = ["backend", "clock", "make", "pair", "plain_environment", "played", "refused", "study"]
