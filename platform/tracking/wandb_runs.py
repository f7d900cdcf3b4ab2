"""Mirrors a study to Weights & Biases: a group with a run for the study and for each measurement, gate and profile.

W&B's own variables decide where and whether data are sent (`WANDB_MODE=offline` keeps them in the study's folder for
`wandb sync`). Offline W&B cannot be queried, so a file in the study's folder lists the runs that were written.
"""

import hashlib
import importlib
import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from platform.study.result.result import StudyResult
from platform.tracking import study_run
from platform.tracking.content import FORMAT, Content
from platform.tracking.mirror import Mirror
from platform.tracking.study_runs import StudyRuns
from platform.tracking.system_metrics import Sample
from platform.tracking.wandb_option import check_project
from trainers.records.journal import StudyHeader
from trainers.records.plain_files import MissingFileError, read_plain

MIRRORED = "mirrored.txt"
"""File in the folder `wandb` with a line for each run that was written."""
_NAMES = ("model", "space", "device", "cluster", "recipes", "commit", "argv", "data", "winner_measurement_id")
"""Parameters, and tags of the winner, that are text even if they look like a number."""
_NEVER_MS = 2**62


class WandbMirror(Mirror):
    """Follows the journal in `folder` and repeats it in a W&B project until `close`.

    Raises:
        InputError: wandb is not installed, or the project's name is invalid.
    """

    tracker: ClassVar[str] = "W&B"
    lock: ClassVar[str] = "mirror-wandb.lock"

    @staticmethod
    def _checked(uri: str) -> str:
        return check_project(uri)

    def _connected(self, header: StudyHeader) -> StudyRuns:
        return WandbRuns(self.uri, header, self.folder)

    @property
    def place(self) -> str:
        return self.uri

    @property
    def look(self) -> str:
        """Returns a sentence on the project, or the command that sends data kept offline."""
        folder = self.folder / "wandb"
        if os.environ.get("WANDB_MODE") != "offline":
            return f"W&B has it in project {self.uri}, group {self.folder.name}."
        return f"W&B's files are in {folder}; to send them: wandb sync {shlex.quote(str(folder))}/offline-run-*"


class WandbRuns:
    """A study's runs in a W&B project.

    Raises:
        Exception: any error that wandb raises; so do all methods.
    """

    def __init__(self, project: str, header: StudyHeader, folder: Path) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        self._header, self._folder = header, folder / "wandb"
        entity, _, self._project = project.rpartition("/")
        self._entity = entity or None
        self._folder.mkdir(exist_ok=True)
        self._list = self._folder / MIRRORED
        try:
            self._mirrored = set(read_plain(self._list).decode(errors="replace").splitlines())
        except MissingFileError:
            self._mirrored = set[str]()
        self._roles: dict[str, str] = {}
        self._text = ""
        self._tables: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._files: Sequence[Path] = ()

    @property
    def addresses(self) -> Mapping[str, str]:
        """Empty: W&B needs no saved views, its pages group and sort runs by their config."""
        return {}

    def add(self, content: Content) -> None:
        """Creates the run of an entry, once for each format of its content."""
        line = f"{content.entry_id} {FORMAT}"
        if line in self._mirrored:
            return
        config = {**content.tags, **as_numbers(content.params), "role": content.role}
        run = self._begin(content.entry_id, content.name, str(content.role), config)
        for name, series in content.series.items():
            run.define_metric(name, step_metric=f"{name}/index")
            for number, (_, value) in enumerate(series):
                run.log({name: float(value), f"{name}/index": number})
        run.summary.update({name: value for name, value in content.metrics.items() if math.isfinite(value)})
        run.finish(exit_code=0 if content.finished else 1)
        self._note(line)

    def set_roles(self, roles: Mapping[str, str]) -> None:
        """Stores the roles for the study's run, because a run that has ended offline cannot be changed."""
        self._roles |= roles

    def tidy(self) -> None:
        """Does nothing: a run's id follows from its entry, so W&B merges data sent twice."""

    def running(self) -> None:
        """Does nothing: the study's run is written when it ends."""

    def samples_until_ms(self) -> int:
        """Returns a time after all samples, because the machine's samples are not sent to W&B."""
        return _NEVER_MS

    def samples(self, samples: Sequence[Sample]) -> None:
        """Does nothing; see `samples_until_ms`."""

    def describe(self, text: str) -> None:
        """Stores the text for the notes of the study's run."""
        self._text = text

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._tables[name] = rows

    def attach(self, files: Sequence[Path]) -> None:
        self._files = files

    def ended(self, result: StudyResult, folder: Path, *, status: str, ended_at: str) -> None:
        """Writes the study's run if it differs from the one written last."""
        tags, metrics = study_run.leader(result, folder)
        parts = [tags, metrics, self._text, self._roles, status, [path.name for path in self._files]]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
        if f"study {digest}" in self._mirrored:
            return
        params = study_run.study_params(self._header)
        config = {**study_run.study_tags(self._header), **as_numbers({**params, **tags})}
        run = self._begin(self._header.id, self._header.name, "study", config, notes=self._text)
        for name, rows in self._tables.items():
            columns = list(rows[0]) if rows else []
            data = [[_cell(row[column]) for column in columns] for row in rows]
            run.log({Path(name).stem: self._wandb.Table(columns=columns, data=data, allow_mixed_types=True)})
        run.summary.update({name: value for name, value in metrics.items() if math.isfinite(value)})
        run.summary.update({"roles": json.dumps(self._roles), "status": status})
        for path in self._files:
            run.save(str(path), base_path=str(path.parent), policy="now")
        run.finish(exit_code=0 if status == "FINISHED" else 1)
        self._note(f"study {digest}")

    def _begin(self, entry_id: str, name: str, kind: str, config: Mapping[str, Any], notes: str = "") -> Any:
        return self._wandb.init(
            project=self._project,
            entity=self._entity,
            group=self._header.name,
            job_type=kind,
            name=name,
            notes=notes or None,
            id=hashlib.sha256(f"{self._header.id} {entry_id}".encode()).hexdigest()[:16],
            config=dict(config),
            dir=str(self._folder.parent),
            resume="allow",
            reinit="create_new",
            settings=self._wandb.Settings(
                silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True
            ),
        )

    def _note(self, line: str) -> None:
        self._mirrored.add(line)
        with self._list.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def as_numbers(params: Mapping[str, str]) -> dict[str, Any]:
    """Returns parameters with numbers in place of text that is one, so that W&B can sort by them. Names, commits and
    versions stay as they are: 2.10 is no number, nor is an id of digits alone.
    """
    return {name: value if _is_name(name) else _number(value) for name, value in params.items()}


def _is_name(param: str) -> bool:
    return param.startswith("version_") or param in _NAMES


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return text


def _cell(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
