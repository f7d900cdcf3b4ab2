"""MLflow's client: imported late, with short timeouts, and one process at a time where a store is new."""

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
"""Longest wait for one answer of a server, unless MLFLOW_HTTP_REQUEST_TIMEOUT says otherwise."""

_KIND = "mlflow.experimentKind"
_TRAINING = "custom_model_development"
"""MLflow's kind of experiment whose runs train models, so that its page opens on runs and not on traces."""


@functools.cache
def mlflow() -> Any:
    """Returns MLflow with little logging. Its import takes seconds, so it is only called from the mirror's thread.

    Its defaults are changed in this process alone: no variable is set that a child process would inherit, and one that
    the user has set still counts. Retrying is left to the mirror, which asks first what the server has.
    """
    ml = importlib.import_module("mlflow")
    importlib.import_module("mlflow.entities")
    importlib.import_module("mlflow.exceptions")
    variables = importlib.import_module("mlflow.environment_variables")
    variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES.default = 0
    variables.MLFLOW_HTTP_REQUEST_TIMEOUT.default = TIMEOUT_S
    # With --json standard output is for the result alone; MLflow prints a link there for every run that ends.
    variables.MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.default = True
    for name in ("mlflow", "alembic"):  # what goes wrong is raised too, and the mirror says it in a sentence
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return ml


def connected(uri: str, experiment: str) -> tuple[Any, Any]:
    """Returns a client of the store at `uri`, and the experiment of that name, which is created where it is missing.

    Raises:
        Exception: whatever MLflow raises where the server does not answer or refuses.
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
    # Beside the database: MLflow's own default is a folder relative to wherever the process stands.
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
    """Lets one process at a time create a sqlite file's tables: two at once fail halfway."""
    path = sqlite_path(uri)
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():  # SQLite would make it for everybody to read; its own files beside it follow it
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, private_mode(path.parent)))
    with path.with_name(path.name + ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
