"""Ends a search whose trial never starts.

A thread watches without calling Ray, because a stuck Ray also blocks the main thread.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Generator
from pathlib import Path

from platform.common.text import duration
from trainers.records.plain_files import read_json
from trainers.spec.errors import MissingFileError

START_S = 600.0
"""Seconds until a trial's workers must first report: twice the limit of its own process
(`trainers.trial.trainable.START_S`), which has to be placed and started first.
"""
_POLL_S = 2.0


@contextlib.contextmanager
def starts(running: Callable[[], Collection[str]], state: Path, on_overdue: Callable[[str], None]) -> Generator[None]:
    """Calls `on_overdue` once from another thread with a sentence if one of the `running` trials does not start.

    A trial has started when its id is in the recorder's file `state`.
    """
    is_over = threading.Event()
    threading.Thread(target=_watch_start, args=(running, state, on_overdue, is_over), name="start", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _watch_start(
    running: Callable[[], Collection[str]], state: Path, on_overdue: Callable[[str], None], is_over: threading.Event
) -> None:
    since_s: dict[str, float] = {}
    while not is_over.wait(_POLL_S):
        waiting, now_s = set(running()), time.monotonic()
        if waiting:
            waiting -= _started(state)
        since_s = {trial_id: since_s.get(trial_id, now_s) for trial_id in waiting}
        overdue = {trial_id: now_s - seen_s for trial_id, seen_s in since_s.items() if now_s - seen_s > START_S}
        for trial_id, waited_s in overdue.items():
            on_overdue(
                f"no worker of trial {trial_id} reported within {duration(waited_s)} of its start (`ray status`)"
            )
            return


def _started(state: Path) -> set[str]:
    try:
        return set(read_json(state)["statuses"])
    except MissingFileError:  # no trial has reported yet
        return set()
