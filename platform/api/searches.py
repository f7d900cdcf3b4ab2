"""Runs a search in its own process, which leaves the caller's Ray alone and ends in order at an interrupt."""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import platform.search as command  # pyright takes `from platform import` for the standard module
from platform.api.arguments import arguments
from platform.api.studies import MeasuredStudy, open
from platform.common.errors import NOT_RESOLVED, ClusterError, InputError, NothingFits
from platform.common.signals import INTERRUPTED
from trainers.spec.codec import json_object

_LAST_LINES = 20
"""Number of lines kept of the search's standard error; the last one states why it ended."""


class Search:
    """A running search."""

    def __init__(self, words: Sequence[str], studies: Path | None, *, verbose: bool) -> None:
        self._studies = studies
        self._lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._output = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", command.__name__, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt of the caller reaches the search only once, by `stop`
        )
        self._relay = threading.Thread(target=self._read_lines, args=(verbose,), daemon=True)
        self._relay.start()

    def _read_lines(self, verbose: bool) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)
            if verbose:
                print(line, end="", file=sys.stderr, flush=True)

    def wait(self) -> MeasuredStudy:
        """Returns the study when the search has ended; `best` is None if nothing fits or the winner is not resolved.

        An interrupt, such as a notebook's, ends the search in order; measurements are kept.

        Raises:
            InputError: the search refused its options.
            ClusterError: the cluster is at fault.
            KeyboardInterrupt: the search was interrupted.
        """
        try:
            code = self._ended()
        except KeyboardInterrupt:
            self.stop()
            raise
        self._relay.join()
        last = self._lines[-1].strip() if self._lines else f"the search ended with exit code {code} without a message"
        if code == InputError.exit_code:
            raise InputError(last.removeprefix("error: "))
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code in (0, NothingFits.exit_code, NOT_RESOLVED):
            return open(json_object(self._output)["study"], self._studies)
        raise ClusterError(last.removeprefix("cluster fault: "))

    def stop(self) -> None:
        """Ends the search as an interrupt does, and waits for it. A further interrupt of the caller's is passed on to
        it: to leave earlier would leave it running.
        """
        while True:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(KeyboardInterrupt):
                self._ended()
                return

    def _ended(self) -> int:
        """Returns the exit code when the process has ended, and keeps what it printed, without which its pipe fills."""
        assert self.process.stdout is not None
        self._output += self.process.stdout.read()
        return self.process.wait()


def search(
    space: str | os.PathLike[str] | None = None, *, wait: bool = True, verbose: bool = False, **options: Any
) -> MeasuredStudy | Search:
    """Measures which layout trains a model fastest; returns its study, or the running search without `wait`.

    `options` are those of `python -m platform.search`: `gpus=4`, `set={"engine": ["fsdp", "ddp"]}`, `resume="NAME"`. If
    this process is connected to a Ray, the search joins it and leaves it running. `verbose` prints the search's
    progress.

    Raises:
        InputError: the search refused its options.
        ClusterError: the cluster is at fault.
        KeyboardInterrupt: the search was interrupted; the study keeps what was measured.
    """
    if isinstance(options.get("gpus"), list | tuple):
        raise InputError("a search of one number of devices is a study, got several: search each, or use the command")
    ray: Any = sys.modules.get("ray")
    if "address" not in options and ray is not None and ray.is_initialized():
        options["address"] = ray.get_runtime_context().gcs_address
    positional = [] if space is None else [os.fspath(space)]
    studies = options.get("studies")
    running = Search(
        arguments(*positional, json=True, **options), None if studies is None else Path(studies), verbose=verbose
    )
    return running.wait() if wait else running
