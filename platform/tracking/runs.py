"""A study's runs in MLflow: one for the study, and a child for each measurement, gate and profile.

No state is kept on this side: existing runs are found by their tags. The next process can therefore complete a run that
a killed process created.
"""

import dataclasses
import importlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from platform.study.result.result import StudyResult
from platform.tracking import study_run, views
from platform.tracking.client import connected, mlflow
from platform.tracking.content import FORMAT, Content
from platform.tracking.series import milliseconds
from platform.tracking.system_metrics import Sample
from platform.tracking.urls import page_link, page_server
from trainers.records.journal import StudyHeader

WINNER_FILES = ("layout*.json", "ds_config*.json")
_TABLES = "mlflow.loggedArtifacts"
"""Tag by which MLflow's pages recognise an artifact as a table."""
_SAMPLED = "system_metrics_until_ms"
_MOST_METRICS, _MOST_PARAMS = 1000, 100
"""Largest numbers of metrics and of parameters in a call that every MLflow server accepts."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Child:
    run_id: str
    complete: bool
    format: str = FORMAT
    role: str = ""


class Runs:
    """A study's runs on a tracking server, read when the connection is made.

    Raises:
        Exception: any error that MLflow raises if the server does not answer or refuses; so do all methods. After an
            error the server's state is unknown: connect again.
    """

    def __init__(self, uri: str, header: StudyHeader) -> None:
        self._header = header
        self._client, experiment = connected(uri, header.space)
        self.experiment_id: str = experiment.experiment_id
        self._addresses = views.addresses(page_server(uri), self.experiment_id, self._header.id)
        self._parent = self._existing_parent()
        self.parent_id: str = self._parent.info.run_id
        self._children = self._existing_children()
        self._save_views(experiment.tags)

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each view that is not empty."""
        roles = {child.role for child in self._children.values()}
        empty = set() if "gate" in roles else {"gates"}
        empty |= set() if "measurement" in roles else {"layouts", "charts"}
        return {name: address for name, address in self._addresses.items() if name not in empty}

    def _existing_parent(self) -> Any:
        header = self._header
        runs = self._client.search_runs([self.experiment_id], f"tags.study_id = '{self._header.id}'", max_results=1)
        if runs:
            run = runs[0]
        else:
            run = self._client.create_run(
                self.experiment_id,
                start_time=milliseconds(header.at),
                tags={"study_id": self._header.id, "study": header.name},
                run_name=header.name,
            )
        view_tags = {views.ADDRESS + name: address for name, address in self._addresses.items()}
        tags = {**study_run.study_tags(header), **view_tags}
        missing = {name: value for name, value in study_run.study_params(header).items() if name not in run.data.params}
        self._log(
            run.info.run_id,
            params=missing,
            tags={name: value for name, value in tags.items() if run.data.tags.get(name) != value},
        )
        return run

    def _existing_children(self) -> dict[str, _Child]:
        """Returns the runs by entry id. Of two runs with one id, the one with less content is deleted."""
        children: dict[str, _Child] = {}
        token = None
        while True:
            page = self._client.search_runs(
                [self.experiment_id],
                f"tags.`mlflow.parentRunId` = '{self.parent_id}'",
                max_results=1000,
                page_token=token,
            )
            for run in page:
                tags = run.data.tags
                entry_id = tags.get("entry_id")
                if entry_id is None:
                    continue
                child = _Child(
                    run_id=run.info.run_id,
                    complete=run.info.status != "RUNNING",
                    format=tags.get("format", ""),
                    role=tags.get("role", ""),
                )
                present = children.get(entry_id)
                if present is not None:
                    # A request that timed out here may still have been executed by the server.
                    child, poorer = (child, present) if _worth(child) > _worth(present) else (present, child)
                    self._client.delete_run(poorer.run_id)
                children[entry_id] = child
            token = page.token
            if not token:
                return children

    def _save_views(self, stored: Mapping[str, str]) -> None:
        """Stores the views of this study and of its space's studies if they differ from `stored`."""
        study, at_ms = self._header.name, milliseconds(self._header.at)
        for view in (
            views.layouts_view(study, self._header.id, self.parent_id, at_ms),
            views.gates_view(study, self._header.id, self.parent_id, at_ms),
            views.studies_view(self._header.space),
        ):
            name, value = view.tag
            if stored.get(name) != value:
                self._client.set_experiment_tag(self.experiment_id, name, value)

    def has(self, entry_id: str) -> bool:
        """Returns whether the entry's run exists, is complete and has the present format."""
        child = self._children.get(entry_id)
        return child is not None and child.complete and child.format == FORMAT

    def add(self, content: Content) -> None:
        """Creates the run, completes an incomplete one, or replaces one of another format."""
        if self.has(content.entry_id):
            return
        present = self._children.get(content.entry_id)
        if present is not None and present.format != FORMAT:
            self._client.delete_run(present.run_id)
            present = None
        run_id = present.run_id if present else self._new(content)
        role = (present.role if present else "") or content.role
        self._children[content.entry_id] = _Child(run_id=run_id, complete=False, role=role)
        self._log(run_id, params=content.params)
        metric = mlflow().entities.Metric
        # Times come from the journal, so completing a run writes the same points again.
        points = [metric(name, value, content.ended_ms, 0) for name, value in content.metrics.items()]
        for name, values in content.series.items():
            points += [metric(name, float(value), at_ms, step) for step, (at_ms, value) in enumerate(values)]
        for metrics in _chunks(points, _MOST_METRICS):
            self._client.log_batch(run_id, metrics=metrics)
        self._client.set_terminated(run_id, "FINISHED" if content.finished else "FAILED", end_time=content.ended_ms)
        self._children[content.entry_id] = _Child(run_id=run_id, complete=True, role=role)

    def _new(self, content: Content) -> str:
        run = self._client.create_run(
            self.experiment_id,
            start_time=content.started_ms,
            tags={
                "mlflow.parentRunId": self.parent_id,
                "entry_id": content.entry_id,
                "format": FORMAT,
                "role": content.role,
                **content.tags,
            },
            run_name=content.name,
        )
        return run.info.run_id

    def set_roles(self, roles: Mapping[str, str]) -> None:
        """Tags measurements' runs with their roles by entry id, so that views show each point once."""
        for entry_id, role in roles.items():
            child = self._children.get(entry_id)
            if child is not None and child.role != role:
                self._client.set_tag(child.run_id, "role", role)
                self._children[entry_id] = dataclasses.replace(child, role=role)

    def _log(self, run_id: str, *, params: Mapping[str, str], tags: Mapping[str, str] | None = None) -> None:
        entities = mlflow().entities
        for chunk in _chunks([entities.Param(name, value) for name, value in params.items()], _MOST_PARAMS):
            self._client.log_batch(run_id, params=chunk)
        for chunk in _chunks([entities.RunTag(name, value) for name, value in (tags or {}).items()], _MOST_PARAMS):
            self._client.log_batch(run_id, tags=chunk)

    def tidy(self) -> None:
        """Deletes duplicate runs, which may be created when a connection is lost."""
        self._children = self._existing_children()

    def running(self) -> None:
        self._client.update_run(self.parent_id, status="RUNNING")

    def ended(self, result: StudyResult, folder: Path, *, status: str, ended_at: str) -> None:
        """Marks the study as ended and writes its first recipe's winner to its run, so that studies can be compared.

        Tags, metrics and files of an earlier winner are removed.
        """
        stored = self._client.get_run(self.parent_id).data
        tags, metrics = study_run.leader(result, folder)
        outdated_tags, old = study_run.outdated(stored.tags, stored.metrics, tags, metrics)
        for name in outdated_tags:
            self._client.delete_tag(self.parent_id, name)
        # MLflow cannot delete a metric and shows the latest value; for equal times it would show the larger one.
        values = {**metrics, **dict.fromkeys(old, math.nan)}
        now_ms = max(milliseconds(ended_at), round(time.time() * 1000))
        changed = {name: value for name, value in values.items() if not _same(stored.metrics.get(name), value)}
        new_metrics = [mlflow().entities.Metric(name, value, now_ms, 0) for name, value in changed.items()]
        self._client.log_batch(self.parent_id, metrics=new_metrics)
        self._log(self.parent_id, params={}, tags=tags)
        self._remove_old_files(folder, has_winner=bool(tags))
        self._client.set_terminated(self.parent_id, status, end_time=milliseconds(ended_at))

    def _remove_old_files(self, folder: Path, *, has_winner: bool) -> None:
        """Deletes files of an earlier winner that the study's folder no longer has."""
        current_names = (
            {path.name for pattern in WINNER_FILES for path in folder.glob(pattern)} if has_winner else set[str]()
        )
        if has_winner and not current_names:  # another user's folder, in which no files could be written
            return
        stored = (list_artifact.path for list_artifact in self._client.list_artifacts(self.parent_id))
        old = [
            name
            for name in stored
            if name not in current_names and any(fnmatch(name, winner_file) for winner_file in WINNER_FILES)
        ]
        if old:
            uri = self._client.get_run(self.parent_id).info.artifact_uri
            registry = importlib.import_module("mlflow.store.artifact.artifact_repository_registry")
            files = registry.get_artifact_repository(uri, tracking_uri=self._client.tracking_uri)
            for name in old:
                files.delete_artifacts(name)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Stores rows with the study's run as a table that MLflow's pages show and sort; replaces an earlier one.

        MLflow's own `log_table` would append to it.
        """
        columns = list(rows[0]) if rows else []
        data = [[None if _no_number(row[column]) else row[column] for column in columns] for row in rows]
        self._client.log_dict(self.parent_id, {"columns": columns, "data": data}, name)
        tags = self._client.get_run(self.parent_id).data.tags
        tables = json.loads(tags.get(_TABLES, "[]"))
        entry = {"path": name, "type": "table"}
        if entry not in tables:
            self._client.set_tag(self.parent_id, _TABLES, json.dumps([*tables, entry]))

    def samples_until_ms(self) -> int:
        return int(self._client.get_run(self.parent_id).data.tags.get(_SAMPLED, 0))

    def samples(self, samples: Sequence[Sample]) -> None:
        """Stores samples of the machine as the study's system metrics."""
        metric, tag = mlflow().entities.Metric, mlflow().entities.RunTag
        for some in _chunks(samples, _MOST_METRICS // max(map(len, (sample[2] for sample in samples)), default=1)):
            metrics = [
                metric(name, value, sampled_ms, number)
                for number, sampled_ms, values in some
                for name, value in values.items()
            ]
            self._client.log_batch(self.parent_id, metrics=metrics, tags=[tag(_SAMPLED, str(some[-1][1]))])

    def describe(self, text: str) -> None:
        """Writes Markdown `text` at the top of the study's page, below links to its views that work at any port."""
        links = ", ".join(page_link(name, address) for name, address in self.addresses.items())
        self._client.set_tag(self.parent_id, "mlflow.note.content", f"Compare: {links}\n\n{text[:4000]}")

    def attach(self, files: Sequence[Path]) -> None:
        for path in files:
            self._client.log_artifact(self.parent_id, str(path))


def _worth(child: _Child) -> tuple[bool, bool]:
    return child.format == FORMAT, child.complete


def _same(stored: float | None, value: float) -> bool:
    return stored is not None and (stored == value or (math.isnan(stored) and math.isnan(value)))


def _no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
