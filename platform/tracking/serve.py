"""`make mlflow`: serves MLflow's pages of a folder of studies on this machine only, until Ctrl-C."""

import contextlib
import dataclasses
import os
import socket
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

from platform.common.errors import InputError, one_line
from platform.common.options import CommandParser, option
from platform.common.signals import exit_with
from platform.study.folder import absolute_path, studies_field
from platform.tracking.uri import default_uri, sqlite_path
from platform.tracking.urls import PORT
from platform.tracking.views import ADDRESS
from trainers.spec.codec import printable

_HOST = "127.0.0.1"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    studies: Path = studies_field(then=absolute_path)
    port: int = option(PORT, about="port to listen on (default: %(default)s)")


PARSER = CommandParser(
    ServeOptions, prog="make mlflow", description="Serves MLflow's pages of the studies in a folder."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Replaces this process by `mlflow ui`; returns an exit code only if that cannot start."""
    try:
        options = PARSER.read(argv)
        command = ui_arguments(options.studies, options.port)
    except InputError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return InputError.exit_code
    lines = newest(sqlite_path(default_uri(options.studies)), options.port)
    # MLflow's start page shows its features for agents and no runs.
    home = f"http://{_HOST}:{options.port}"
    first = next((line.split()[1] for line in lines if line.startswith(f"  {_PAGE} ")), home)
    print(f"MLflow: open {first} once it says that it runs; Ctrl-C ends it", *lines, sep="\n", flush=True)
    if options.port != PORT:
        print(f"In the addresses that a search or a report printed put {options.port} in place of {PORT}", flush=True)
    # The server's job runners take seconds to start and are not needed here.
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    os.execve(sys.executable, [sys.executable, *command], environment)


def newest(store: Path | None, port: int) -> list[str]:
    """Returns lines with the addresses of the newest studies' and trainings' pages and views on this server.

    Views without content are left out; the result is empty if the store has another schema or cannot be read.
    """
    if store is None:
        return []
    try:
        with contextlib.closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as database:
            roles: dict[str, set[str]] = {}
            for parent, role in database.execute(_ROLES):
                roles.setdefault(parent, set()).add(role)
            views: dict[tuple[str, str], dict[str, str]] = {}
            for run, name, experiment, view, address in database.execute(_VIEWS, (f"{ADDRESS}%",)):
                page = {_PAGE: f"/#/experiments/{experiment}/runs/{run}"}
                views.setdefault((run, name), page)[view.removeprefix(ADDRESS)] = address
    except sqlite3.Error:
        return []
    lines: list[str] = []
    trainings = [run for run, addresses in views.items() if "losses" in addresses]
    others = [run for run in views if run not in trainings]
    for run, name in (*others[:_MOST_NAMED], *trainings[:_MOST_NAMED]):
        addresses = views[run, name]
        shown = [view for view in _SHOWN if view in addresses and _NEEDS.get(view, "") in {"", *roles.get(run, ())}]
        if shown:
            lines.append(f"{printable(name)}:")
            lines += [f"  {view:<8} {_at_port(addresses[view], port)}" for view in (_PAGE, *shown)]
    return lines


def _at_port(address: str, port: int) -> str:
    _, _, page = address.partition("/#/")
    return f"http://{_HOST}:{port}/#/{page}"


_MOST_NAMED = 3
"""Largest number of studies and of trainings that are named."""
_PAGE = "page"
"""Name of a run's own page, whose description has its views and figures."""
_SHOWN = ("layouts", "charts", "gates", "losses")
_NEEDS = {"layouts": "measurement", "charts": "measurement", "gates": "gate"}
"""Role of the runs that a view shows."""
_ROLES = (
    "SELECT DISTINCT parent.value, role.value FROM tags AS parent JOIN tags AS role ON role.run_uuid = parent.run_uuid"
    " JOIN runs ON runs.run_uuid = parent.run_uuid WHERE parent.key = 'mlflow.parentRunId' AND role.key = 'role'"
    " AND runs.lifecycle_stage = 'active'"
)
_VIEWS = (
    "SELECT runs.run_uuid, runs.name, runs.experiment_id, tags.key, tags.value FROM runs"
    " JOIN tags ON tags.run_uuid = runs.run_uuid"
    " WHERE tags.key LIKE ? AND runs.lifecycle_stage = 'active' ORDER BY runs.start_time DESC, tags.key"
)


def ui_arguments(studies: Path, port: int) -> list[str]:
    """Returns Python's arguments for serving the store beside `studies`.

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
