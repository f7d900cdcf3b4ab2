"""A study's runs in MLflow: one for the study, a child for each measurement, each made once.

MLflow is the record here: what is there already is asked for by tags, so nothing needs to be noted on this side, and a
process killed between making a run and filling it leaves nothing that the next one could not complete.
"""

import contextlib
import datetime
import fcntl
import functools
import importlib
import logging
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.mlflow_uri import sqlite_path
from trainers.codec import identity, to_json
from trainers.journal import StudyHeader
from trainers.measurement import Measurement, Outcome

TIMEOUT_S = 10
"""Longest wait for one answer of a server, unless MLFLOW_HTTP_REQUEST_TIMEOUT says otherwise."""

SERIES = {"losses": "loss", "grad_norms": "grad_norm", "step_times_s": "step_times_s"}
"""Per-step fields of a measurement and the metric each becomes."""

_FINISHED = frozenset({Outcome.OK, Outcome.THRASH, Outcome.SLOW})
_MOST_METRICS, _MOST_PARAMS, _LONGEST = 1000, 100, 500
"""Per call, and characters of a value: what every MLflow server takes."""

_METRICS = (
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "first_micro_step_s",
    "middle_micro_step_s",
    "last_micro_step_s",
    "optimizer_step_s",
    "startup_s",
    "compile_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "model_tflops_per_gpu",
    "hardware_tflops_per_gpu",
    "matmul_peak_tflops",
    "share_of_matmul_peak",
    "datasheet_peak_tflops",
    "share_of_datasheet_peak",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "peak_device_gib",
    "peak_forward_backward_gib",
    "peak_optimizer_gib",
    "alloc_retries",
    "utilization_pct",
    "idle_devices",
    "asked_gib",
    "allocated_gib",
    "reserved_gib",
)
"""A measurement's single figures, each a metric under its own name."""


class Runs:
    """A study's runs on one tracking server, as they are there at the moment of connecting.

    Raises:
        Exception: whatever MLflow raises where the server does not answer or refuses; so do all methods. After an
            error nothing is known of the server's state: connect anew.
    """

    def __init__(self, uri: str, header: StudyHeader) -> None:
        self._ml = _mlflow()
        self._header = header
        with _first_use(uri):
            self._client: Any = self._ml.MlflowClient(tracking_uri=uri)
            self._experiment_id = self._experiment(uri)
        self.parent_id = self._parent()
        self._children = self._found()

    def _experiment(self, uri: str) -> str:
        name = self._header.space
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            if found.lifecycle_stage == "deleted":
                raise RuntimeError(f"its experiment {name!r} was deleted there: restore or purge it")
            return found.experiment_id
        path = sqlite_path(uri)
        # Beside the database: MLflow's own default is a folder relative to wherever the process stands.
        location = None if path is None else (path.parent / "mlflow-artifacts").as_uri()
        try:
            return self._client.create_experiment(name, artifact_location=location)
        except self._ml.exceptions.MlflowException:
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return found.experiment_id

    def _parent(self) -> str:
        header = self._header
        study_id = identity((header.name, header.at, header.argv))
        found = self._client.search_runs([self._experiment_id], f"tags.study_id = '{study_id}'", max_results=1)
        if found:
            return found[0].info.run_id
        tags = {"study_id": study_id, "study": header.name, "miniature": _yes(header.miniature)}
        run = self._client.create_run(
            self._experiment_id,
            start_time=_milliseconds(header.at),
            tags=tags,
            run_name=f"{header.name} (miniature)" if header.miniature else header.name,
        )
        params = {
            "space": header.space,
            "searcher": header.searcher,
            "seed": header.seed,
            "tokens": header.tokens,
            "cap_gib": header.cap_gib,
            "commit": header.commit,
            "cluster": header.cluster.label,
            "num_devices": header.cluster.num_devices,
            "argv": " ".join(header.argv),
            "recipes": "; ".join(recipe.label for recipe in header.recipes),
        }
        self._log(run.info.run_id, params=params)
        return run.info.run_id

    def _found(self) -> dict[str, tuple[str, bool]]:
        """Measurement id -> run id and whether the run is complete. Of two runs of one id the poorer one is deleted."""
        children: dict[str, tuple[str, bool]] = {}
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment_id],
                f"tags.`mlflow.parentRunId` = '{self.parent_id}'",
                max_results=1000,
                page_token=token,
            )
            for run in page:
                measurement_id = run.data.tags.get("measurement_id")
                if measurement_id is None:
                    continue
                child = (run.info.run_id, run.info.status != "RUNNING")
                known = children.get(measurement_id)
                if known is not None:
                    # A request that timed out here may still have been carried out there.
                    child, poorer = (child, known) if child[1] and not known[1] else (known, child)
                    self._client.delete_run(poorer[0])
                children[measurement_id] = child
            token = page.token
            if not token:
                return children

    def has(self, measurement_id: str) -> bool:
        """Whether the measurement's run is there and complete."""
        return self._children.get(measurement_id, ("", False))[1]

    def add(self, measurement: Measurement, *, started: str, ended: str) -> None:
        """Make the measurement's run, or complete one that was begun. Times are the journal's."""
        if self.has(measurement.id):
            return
        known = self._children.get(measurement.id)
        run_id = known[0] if known else self._new(measurement, started)
        self._children[measurement.id] = (run_id, False)
        self._log(run_id, params=params_of(measurement))
        for metrics in _chunks(self._metrics(measurement, _milliseconds(ended)), _MOST_METRICS):
            self._client.log_batch(run_id, metrics=metrics)
        status = "FINISHED" if measurement.outcome in _FINISHED else "FAILED"
        self._client.set_terminated(run_id, status, end_time=_milliseconds(ended))
        self._children[measurement.id] = (run_id, True)

    def _new(self, measurement: Measurement, started: str) -> str:
        mark = " (miniature)" if measurement.miniature else ""
        run = self._client.create_run(
            self._experiment_id,
            start_time=_milliseconds(started),
            tags={
                "mlflow.parentRunId": self.parent_id,
                "measurement_id": measurement.id,
                "study": self._header.name,
                "outcome": measurement.outcome.value,
                "reason": measurement.reason[:_LONGEST],
                "miniature": _yes(measurement.miniature),
                "trial_id": measurement.trial_id,
            },
            run_name=f"{measurement.layout.label}, MBS {measurement.batch.micro_batch}{mark}",
        )
        return run.info.run_id

    def _metrics(self, measurement: Measurement, at_ms: int) -> list[Any]:
        """Times follow from the journal, so that completing a run writes the very same points again."""
        metric = self._ml.entities.Metric
        values = [(name, getattr(measurement, name)) for name in _METRICS]
        found = [metric(name, float(value), at_ms, 0) for name, value in values if value is not None]
        for field, name in SERIES.items():
            series = getattr(measurement, field)
            found += [metric(name, float(each), at_ms - len(series) + 1 + n, n) for n, each in enumerate(series)]
        return found

    def _log(self, run_id: str, *, params: Mapping[str, Any]) -> None:
        param = self._ml.entities.Param
        made = [param(name, _text(value)) for name, value in params.items() if value is not None]
        for chunk in _chunks(made, _MOST_PARAMS):
            self._client.log_batch(run_id, params=chunk)

    def tidy(self) -> None:
        """Look again for runs made twice, after a connection that was lost."""
        self._children = self._found()

    def running(self) -> None:
        """Mark the study as running, also one that had ended."""
        self._client.update_run(self.parent_id, status="RUNNING")

    def ended(self, *, status: str, at: str, best: Measurement | None) -> None:
        """Mark the study as over; the winner's figures go onto its run, so that studies can be compared."""
        if best is not None:
            tags = {"winner": best.layout.label, "winner_measurement_id": best.id}
            made = [self._ml.entities.RunTag(name, value) for name, value in tags.items()]
            plain = [each for each in self._metrics(best, _milliseconds(at)) if each.key not in SERIES.values()]
            self._client.log_batch(self.parent_id, metrics=plain, tags=made)
        self._client.set_terminated(self.parent_id, status, end_time=_milliseconds(at))

    def attach(self, files: Sequence[Path]) -> None:
        """Store files with the study's run, replacing earlier ones of the same name."""
        for path in files:
            self._client.log_artifact(self.parent_id, str(path))


def params_of(measurement: Measurement) -> dict[str, Any]:
    """Flat parameters of a measurement under its own field names; the model's are prefixed with `model_`."""
    recipe: dict[str, Any] = to_json(measurement.recipe)
    model: dict[str, Any] = recipe.pop("model")
    model.pop("config")
    conditions = measurement.conditions
    return {
        "recipe": measurement.recipe.id,
        "layout_id": measurement.layout.id,
        "model": model.pop("name"),
        **{f"model_{name}": value for name, value in model.items()},
        **recipe,
        **to_json(measurement.layout),
        **to_json(measurement.batch),
        "num_devices": measurement.num_devices,
        "repeat": measurement.repeat,
        "measured_grad_accum": measurement.measured_grad_accum,
        "step_time_derived": measurement.step_time_derived,
        "phase": measurement.phase,
        "rank": measurement.rank,
        "cap_gib": measurement.cap_gib,
        "device": conditions.device if conditions else None,
        "num_nodes": conditions.num_nodes if conditions else None,
        "commit": conditions.commit if conditions else None,
    }


@functools.cache
def _mlflow() -> Any:
    """MLflow, told to be brief: seconds to import, so only ever from the mirror's thread.

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
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return ml


@contextlib.contextmanager
def _first_use(uri: str) -> Generator[None, None, None]:
    """One process at a time makes a sqlite file's tables: two at once fail in the middle of it."""
    path = sqlite_path(uri)
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _milliseconds(at: str) -> int:
    return round(datetime.datetime.fromisoformat(at).timestamp() * 1000)


def _text(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    return str(value)[:_LONGEST]


def _yes(flag: bool) -> str:
    return "true" if flag else "false"


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
