"""Linear algebra for the driver's regressions, in one thread."""

import contextlib
import functools

from threadpoolctl import ThreadpoolController


def one_thread() -> contextlib.AbstractContextManager[object]:
    """Returns a context in which BLAS uses one thread.

    For matrices of some hundred rows, more threads only wait for each other: with two, the inverse of 120 rows takes
    0.3 ms on an idle host and up to 90 ms next to other work.
    """
    return _libraries().limit(limits=1, user_api="blas")


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
