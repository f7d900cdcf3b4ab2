"""MLflow's client: imported late, with short timeouts; only one process at a time creates a new store."""

import contextlib
import fcntl
import functools
import importlib
import logging
import os
from collections.abc import Generator
from typing import Any

from platform.tracking.uri import sqlite_path
from trainers.records.plain_files import private_mode

TIMEOUT_S = 10
"""Longest wait in seconds for an answer of a server, unless MLFLOW_HTTP_REQUEST_TIMEOUT is set."""

_KIND = "mlflow.experimentKind"
_TRAINING = "custom_model_development"
"""Experiment kind of trained models, with which MLflow opens the experiment on its runs and not on traces."""


@functools.cache
def mlflow() -> Any:
    """Returns the MLflow module with little logging. Call it only in the mirror's thread, because its import takes
    seconds.

    Defaults are changed in this process only: no environment variable is set that child processes would inherit, and
    variables set by the user take precedence. MLflow's retries are off, because the mirror retries itself and first
    asks for the server's state.
    """
    ml = importlib.import_module("mlflow")
    importlib.import_module("mlflow.entities")
    importlib.import_module("mlflow.exceptions")
    variables = importlib.import_module("mlflow.environment_variables")
    variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES.default = 0
    variables.MLFLOW_HTTP_REQUEST_TIMEOUT.default = TIMEOUT_S
    # With --json, standard output is only for the result; MLflow prints a link there for every ended run.
    variables.MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.default = True
    for name in ("mlflow", "alembic"):  # errors are raised as well, and the mirror reports them in a sentence
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return ml


def connected(uri: str, experiment: str) -> tuple[Any, Any]:
    """Returns a client of the store at `uri`, and the experiment of that name, created if it is missing.

    Raises:
        Exception: any error that MLflow raises if the server does not answer or refuses.
    """
    with _first_use(uri):
        client = mlflow().MlflowClient(tracking_uri=uri)
        stored = _experiment(client, uri, experiment)
    if _KIND not in stored.tags:
        client.set_experiment_tag(stored.experiment_id, _KIND, _TRAINING)
    return client, stored


def _experiment(client: Any, uri: str, name: str) -> Any:
    existing = client.get_experiment_by_name(name)
    if existing is not None:
        if existing.lifecycle_stage == "deleted":
            raise RuntimeError(f"its experiment {name!r} was deleted there: restore or purge it")
        return existing
    path = sqlite_path(uri)
    # Beside the database; MLflow's default is relative to the process's working folder.
    location = None if path is None else (path.parent / "mlflow-artifacts").as_uri()
    try:
        return client.get_experiment(client.create_experiment(name, artifact_location=location))
    except mlflow().exceptions.MlflowException:
        existing = client.get_experiment_by_name(name)
        if existing is None:
            raise
        return existing


@contextlib.contextmanager
def _first_use(uri: str) -> Generator[None, None, None]:
    """Lets only one process at a time create a sqlite file's tables, because concurrent creation fails."""
    path = sqlite_path(uri)
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():  # SQLite would make the file readable for everybody; its companion files copy the mode
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, private_mode(path.parent)))
    with path.with_name(path.name + ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
