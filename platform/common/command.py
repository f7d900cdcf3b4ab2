"""Runs a command and turns a user's mistake or a fault of the cluster into one sentence and an exit code."""

from collections.abc import Callable

from platform.common.errors import ClusterError, InputError, one_line
from platform.common.output import print_line
from platform.common.signals import INTERRUPTED, interruptible


def exit_code_of(run: Callable[[], int]) -> int:
    """Runs a command and returns its exit code; prints an `InputError` or `ClusterError` as one sentence."""
    try:
        return run()
    except InputError as error:
        print_line(f"error: {one_line(error)}")
        return error.exit_code
    except ClusterError as error:
        print_line(f"cluster fault: {one_line(error)}")
        return error.exit_code


def exit_code_of_resumable(run: Callable[[], int]) -> int:
    """Runs a resumable command as `exit_code_of` does; an interrupt gives exit code `INTERRUPTED`."""
    try:
        with interruptible():
            return exit_code_of(run)
    except KeyboardInterrupt:
        print_line("Interrupted: the same command resumes.")
        return INTERRUPTED
