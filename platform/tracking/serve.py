"""`make mlflow`: serves MLflow's pages of a folder of studies on this machine alone, until Ctrl-C."""

import dataclasses
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from platform.common.errors import InputError, one_line
from platform.common.options import CommandParser, option
from platform.common.signals import exit_with
from platform.study.folder import absolute_path, studies_field
from platform.tracking.uri import default_uri, sqlite_path
from platform.tracking.urls import PORT

_HOST = "127.0.0.1"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """The options of one call."""

    studies: Path = studies_field(then=absolute_path)
    port: int = option(PORT, about="where to listen (default: %(default)s)")


PARSER = CommandParser(
    ServeOptions, prog="make mlflow", description="Serves MLflow's pages of the studies in a folder."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Replaces this process by `mlflow ui`; returns an exit code only where that cannot start."""
    try:
        options = PARSER.read(argv)
        command = ui_arguments(options.studies, options.port)
    except InputError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return InputError.exit_code
    print(f"MLflow: open http://{_HOST}:{options.port} once it says that it runs; Ctrl-C ends it", flush=True)
    if options.port != PORT:
        print(f"In the addresses that a search or a report printed put {options.port} in place of {PORT}", flush=True)
    # The server's job runners take seconds to start, and nothing here needs them.
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    os.execve(sys.executable, [sys.executable, *command], environment)


def ui_arguments(studies: Path, port: int) -> list[str]:
    """Returns the arguments with which Python serves the store beside `studies`.

    Raises:
        InputError: there is no store yet, or the port is taken.
    """
    uri = default_uri(studies)
    store = sqlite_path(uri)
    if store is None or not store.exists():
        raise InputError(f"{studies} has no mlflow.db: run make search first, or name another folder by STUDIES=DIR")
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_HOST, port))
    except (OSError, OverflowError) as error:
        raise InputError(
            f"port {port} of {_HOST} cannot be used ({error}): where MLflow serves these studies already, open the"
            " printed addresses; else choose another by PORT=NUMBER, which takes its place in them"
        ) from error
    listen = ["--host", _HOST, "--port", str(port), "--workers", "1"]
    return ["-m", "mlflow", "ui", "--backend-store-uri", uri, *listen]


if __name__ == "__main__":
    exit_with(main)
