"""Remembers the commands and functions that this user searched, because a study from elsewhere may name another one."""

import contextlib

from platform.common import user_cache
from platform.common.errors import InputError
from platform.search.setup.request import SearchRequest
from trainers.spec.workload import Workload

_KIND = "commands"


def remember(request: SearchRequest) -> None:
    """Records the request's command or function, if any, as the user's own; ignores a folder that cannot be written."""
    if workload := request.space.recipe.workload:
        with contextlib.suppress(OSError, RuntimeError):
            folder = user_cache.folder_of(_KIND)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (folder / workload.digest).touch()


def check(request: SearchRequest, *, is_typed: bool, trusted: bool) -> None:
    """Checks that this user began to search the command or function of a resumed study.

    Whoever sent the study's folder chose it. A command typed again beside `--resume`, or `--trust`, allows it.

    Raises:
        InputError: this user did not begin it here.
    """
    workload = request.space.recipe.workload
    if workload is None:
        return
    if is_typed or trusted:
        remember(request)
    elif not _is_known(workload):
        raise InputError(
            f"the study runs the {_words_of(workload)} in {workload.folder}, which this user did not begin to search as"
            " it and its files are now: look at them, then give --trust"
        )


def _words_of(workload: Workload) -> str:
    return f"function {workload.build}" if workload.build else f"command {' '.join(workload.command)!r}"


def _is_known(workload: Workload) -> bool:
    try:
        return (user_cache.folder_of(_KIND) / workload.digest).exists()
    except (OSError, RuntimeError):
        return False
