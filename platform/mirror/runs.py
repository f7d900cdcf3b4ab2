"""A study's runs in MLflow: one for the study, a child for each measurement and each numerics gate, each made once.

MLflow is the record here: what is there already is asked for by tags, so nothing needs to be noted on this side, and a
process killed between making a run and filling it leaves nothing that the next one could not complete.
"""

import contextlib
import datetime
import fcntl
import functools
import importlib
import json
import logging
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.finals.contenders import named_winners
from platform.mirror.fields import as_text, figures_of, gate_of, id_of, name_of, params_of, series_of, tags_of
from platform.mirror.system_metrics import Sample
from platform.mirror.uri import sqlite_path
from platform.study.history import History
from trainers.journal import GateCurves, StudyHeader
from trainers.measurement import Measurement, Outcome

TIMEOUT_S = 10
"""Longest wait for one answer of a server, unless MLFLOW_HTTP_REQUEST_TIMEOUT says otherwise."""

_TABLES = "mlflow.loggedArtifacts"
"""Tag by which MLflow's pages know an artifact for a table."""
_SAMPLED = "system_metrics_until_ms"
_FINISHED = frozenset({Outcome.OK, Outcome.THRASH, Outcome.SLOW})
_MOST_METRICS, _MOST_PARAMS = 1000, 100
"""Per call: what every MLflow server takes."""


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
            self.experiment_id = self._experiment(uri)
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
        found = self._client.search_runs([self.experiment_id], f"tags.study_id = '{header.id}'", max_results=1)
        if found:
            return found[0].info.run_id
        tags = {"study_id": header.id, "study": header.name, "miniature": _yes(header.miniature)}
        run = self._client.create_run(
            self.experiment_id,
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
            "argv": " ".join(header.arguments),
            "recipes": "; ".join(recipe.label for recipe in header.recipes),
        }
        self._log(run.info.run_id, params=params)
        return run.info.run_id

    def _found(self) -> dict[str, tuple[str, bool]]:
        """Entry's id -> run id and whether the run is complete. Of two runs of one id the poorer one is deleted."""
        children: dict[str, tuple[str, bool]] = {}
        token = None
        while True:
            page = self._client.search_runs(
                [self.experiment_id],
                f"tags.`mlflow.parentRunId` = '{self.parent_id}'",
                max_results=1000,
                page_token=token,
            )
            for run in page:
                entry_id = run.data.tags.get("entry_id") or run.data.tags.get("measurement_id")
                if entry_id is None:
                    continue
                child = (run.info.run_id, run.info.status != "RUNNING")
                known = children.get(entry_id)
                if known is not None:
                    # A request that timed out here may still have been carried out there.
                    child, poorer = (child, known) if child[1] and not known[1] else (known, child)
                    self._client.delete_run(poorer[0])
                children[entry_id] = child
            token = page.token
            if not token:
                return children

    def has(self, entry_id: str) -> bool:
        """Whether the entry's run is there and complete."""
        return self._children.get(entry_id, ("", False))[1]

    def add(self, entry: Measurement | GateCurves, *, started: str, ended: str) -> None:
        """Make the entry's run, or complete one that was begun. Times are the journal's."""
        entry_id = id_of(entry)
        if self.has(entry_id):
            return
        known = self._children.get(entry_id)
        run_id = known[0] if known else self._new(entry, started)
        self._children[entry_id] = (run_id, False)
        self._log(run_id, params=params_of(entry))
        for metrics in _chunks(self._metrics(entry, _milliseconds(ended)), _MOST_METRICS):
            self._client.log_batch(run_id, metrics=metrics)
        finished = isinstance(entry, GateCurves) or entry.outcome in _FINISHED
        self._client.set_terminated(run_id, "FINISHED" if finished else "FAILED", end_time=_milliseconds(ended))
        self._children[entry_id] = (run_id, True)

    def _new(self, entry: Measurement | GateCurves, started: str) -> str:
        run = self._client.create_run(
            self.experiment_id,
            start_time=_milliseconds(started),
            tags={
                "mlflow.parentRunId": self.parent_id,
                "study": self._header.name,
                "entry_id": id_of(entry),
                "miniature": _yes(entry.recipe.model.miniature_of is not None),
                **tags_of(entry),
            },
            run_name=name_of(entry),
        )
        return run.info.run_id

    def _metrics(self, entry: Measurement | GateCurves, at_ms: int, *, series: bool = True) -> list[Any]:
        """Times follow from the journal, so that completing a run writes the very same points again."""
        metric = self._ml.entities.Metric
        found = [metric(name, value, at_ms, 0) for name, value in figures_of(entry).items()]
        for name, values in series_of(entry).items() if series else ():
            found += [metric(name, float(each), at_ms - len(values) + 1 + n, n) for n, each in enumerate(values)]
        return found

    def _log(self, run_id: str, *, params: Mapping[str, Any]) -> None:
        param = self._ml.entities.Param
        made = [param(name, as_text(value)) for name, value in params.items() if value is not None]
        for chunk in _chunks(made, _MOST_PARAMS):
            self._client.log_batch(run_id, params=chunk)

    def tidy(self) -> None:
        """Look again for runs made twice, after a connection that was lost."""
        self._children = self._found()

    def running(self) -> None:
        """Mark the study as running, also one that had ended."""
        self._client.update_run(self.parent_id, status="RUNNING")

    def ended(self, history: History, *, status: str, at: str) -> None:
        """Mark the study as over; figures and verdict of its first recipe's winner go onto its run, so that studies can
        be compared.
        """
        recipes = self._header.recipes
        best = named_winners(history.measurements).get(recipes[0].id) if recipes else None
        if best is not None:
            metric, at_ms = self._ml.entities.Metric, _milliseconds(at)
            tags, errors = gate_of(best, history)
            tags |= {"winner": best.layout.label, "winner_measurement_id": best.id}
            made = [self._ml.entities.RunTag(name, value) for name, value in tags.items()]
            plain = self._metrics(best, at_ms, series=False)
            plain += [metric(name, value, at_ms, 0) for name, value in errors.items()]
            self._client.log_batch(self.parent_id, metrics=plain, tags=made)
        else:  # a study may have had one before a resumed session
            known = self._client.get_run(self.parent_id).data.tags
            for name in {"winner", "winner_measurement_id"} & known.keys():
                self._client.delete_tag(self.parent_id, name)
        self._client.set_terminated(self.parent_id, status, end_time=_milliseconds(at))

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store rows with the study's run as a table that MLflow's pages show and sort, in place of an earlier one.

        The client's own `log_table` would append to it.
        """
        columns = list(rows[0]) if rows else []
        data = [[None if _no_number(row[column]) else row[column] for column in columns] for row in rows]
        self._client.log_dict(self.parent_id, {"columns": columns, "data": data}, name)
        tags = self._client.get_run(self.parent_id).data.tags
        known = json.loads(tags.get(_TABLES, "[]"))
        entry = {"path": name, "type": "table"}
        if entry not in known:
            self._client.set_tag(self.parent_id, _TABLES, json.dumps([*known, entry]))

    def samples_until_ms(self) -> int:
        """Unix milliseconds of the last sample of the machine that is there; 0 for none."""
        return int(self._client.get_run(self.parent_id).data.tags.get(_SAMPLED, 0))

    def samples(self, samples: Sequence[Sample]) -> None:
        """Store samples of the machine as the study's system metrics."""
        metric, tag = self._ml.entities.Metric, self._ml.entities.RunTag
        for some in _chunks(samples, _MOST_METRICS // max(map(len, (each[2] for each in samples)), default=1)):
            metrics = [metric(name, value, at, number) for number, at, found in some for name, value in found.items()]
            self._client.log_batch(self.parent_id, metrics=metrics, tags=[tag(_SAMPLED, str(some[-1][1]))])

    def describe(self, text: str) -> None:
        """Put a text, in Markdown, at the head of the study's page."""
        self._client.set_tag(self.parent_id, "mlflow.note.content", text[:5000])

    def attach(self, files: Sequence[Path]) -> None:
        """Store files with the study's run, replacing earlier ones of the same name."""
        for path in files:
            self._client.log_artifact(self.parent_id, str(path))


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
    for name in ("mlflow", "alembic"):  # what goes wrong is raised too, and the mirror says it in a sentence
        logging.getLogger(name).setLevel(logging.CRITICAL)
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


def _no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _yes(flag: bool) -> str:
    return "true" if flag else "false"


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
