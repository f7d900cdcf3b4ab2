"""The training's run in MLflow. A thread follows the records; the run can be completed from them at any time."""

import contextlib
import importlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from platform.common.output import print_line
from platform.tracking import views
from platform.tracking.client import connected, mlflow
from platform.tracking.content import LONGEST, as_text, layout_fields, recipe_fields
from platform.tracking.uri import display_uri, without_secrets
from platform.tracking.urls import page_link, page_server
from trainers.records.training import Begun, Record, Steps, TrainingPlan, Validated
from trainers.records.training_lines import Reader, without_redone

_IN_EFFECT = "in_effect."
"""Prefix of tags with values in effect."""
_LOOK_S = 2.0
_RETRY_S = 30.0
LAST_WAIT_S = 30.0
"""Seconds in which MLflow may catch up after the training has ended."""
_MOST_METRICS = 1000
"""Largest number of metrics in one call that every MLflow server accepts."""


class TrainingRun:
    """A thread that keeps a training's MLflow run up to date until it is closed. Its errors never end a training."""

    def __init__(
        self,
        plan: TrainingPlan,
        *,
        uri: str,
        name: str,
        training_id: str,
        records: Path,
        tags: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._plan, self._uri, self._name, self._id = plan, uri, name, training_id
        self._records, self._tags = records, tags
        self._is_over = threading.Event()
        self._state = "RUNNING"
        self._is_warned = False
        self._thread = threading.Thread(target=self._follow, name="mlflow", daemon=True)
        self._thread.start()

    def close(self, state: str, limit_s: float | None = None) -> None:
        """Lets MLflow catch up for `limit_s` seconds, `LAST_WAIT_S` if None; the run's state is then "FINISHED",
        "FAILED" or "KILLED".
        """
        self._state = state
        self._is_over.set()
        self._thread.join(LAST_WAIT_S if limit_s is None else limit_s)
        if self._thread.is_alive():
            print_line("MLflow has not caught up: the same command, or the next one, brings it up to date.")

    def _follow(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over.is_set()  # once more, for a server that came back meanwhile
            try:
                self._keep_up_to_date()
                return
            except Exception as error:  # MLflow raises many kinds of errors if the server does not answer or refuses
                if not self._is_warned:
                    self._is_warned = True
                    reason = without_secrets(" ".join(str(error).split())[:200], self._uri)
                    print_line(
                        f"MLflow at {display_uri(self._uri)} is not up to date ({reason}); the training goes on."
                    )
                self._is_over.wait(_RETRY_S)

    def _keep_up_to_date(self) -> None:
        run = _Run(self._plan, uri=self._uri, name=self._name, training_id=self._id, tags=self._tags)
        reader = Reader(self._records)
        # Records that a later attempt replaced are left out once that attempt has begun.
        records = reader.read()
        run.tell_attempts(records)
        run.log(without_redone(records))
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(_LOOK_S)
            records = reader.read()
            run.tell_attempts(records)
            run.log(records)
        run.end(self._state)


class _Run:
    """The run on a server, found by the training's id or created."""

    def __init__(self, plan: TrainingPlan, *, uri: str, name: str, training_id: str, tags: Mapping[str, str]) -> None:
        self._plan = plan
        self._client, experiment = connected(uri, plan.recipe.model.name)
        runs = self._client.search_runs([experiment.experiment_id], f"tags.training_id = '{training_id}'")
        if runs:
            run = runs[0]
        else:
            own_tags = {"training_id": training_id, "role": "training", **tags}
            run = self._client.create_run(experiment.experiment_id, tags=own_tags, run_name=name)
        self._id: str = run.info.run_id
        in_effect, begun_with = parameters(plan), run.data.params
        missing = {key: value for key, value in in_effect.items() if key not in begun_with}
        param: Any = importlib.import_module("mlflow.entities").Param
        self._client.log_batch(self._id, params=[param(key, value) for key, value in missing.items()])
        changed = {key: value for key, value in in_effect.items() if begun_with.get(key, value) != value}
        self._tell_changed(changed, begun_with, stale={*run.data.tags})
        address = self._save_view(uri, name, training_id, experiment)
        links = page_link("Losses against tokens and hours", address)
        words = [f"{key} {value} (begun with {begun_with[key]})" for key, value in changed.items()]
        note = f"\n\nResumed with other parameters, which MLflow cannot change: {', '.join(words)}." if words else ""
        self._client.set_tag(self._id, "mlflow.note.content", f"{links}{note}")
        self._client.update_run(self._id, status="RUNNING")
        self._logged = {key: self._last_step(key) for key in ("train_loss", "val_loss")}

    def _tell_changed(self, changed: Mapping[str, str], begun_with: Mapping[str, str], stale: set[str]) -> None:
        """Sets a tag for each parameter whose value in effect is no longer the one that the training began with; MLflow
        keeps a parameter's first value. Removes those of `stale` that no longer hold.
        """
        for key, value in changed.items():
            self._client.set_tag(self._id, f"{_IN_EFFECT}{key}", value)
        for tag in stale:
            if tag.startswith(_IN_EFFECT) and tag.removeprefix(_IN_EFFECT) not in changed:
                self._client.delete_tag(self._id, tag)

    def tell_attempts(self, records: list[Record]) -> None:
        """Sets a tag with the layout of each attempt that the records begin, and one with the layout in effect."""
        for record in records:
            if isinstance(record, Begun):
                words = f"{record.layout}, from step {record.step + 1}"
                self._client.set_tag(self._id, f"attempt.{record.attempt}.layout", words[:LONGEST])
                self._client.set_tag(self._id, f"{_IN_EFFECT}layout", record.layout[:LONGEST])

    def _save_view(self, uri: str, name: str, training_id: str, experiment: Any) -> str:
        """Stores the view of the training's losses; returns its address, to which a tag links."""
        key, state = views.training_view(name, training_id).tag
        if experiment.tags.get(key) != state:
            self._client.set_experiment_tag(experiment.experiment_id, key, state)
        address = views.training_address(page_server(uri), experiment.experiment_id, training_id)
        self._client.set_tag(self._id, f"{views.ADDRESS}losses", address)
        return address

    def _last_step(self, key: str) -> int:
        return max((metric.step for metric in self._client.get_metric_history(self._id, key)), default=-1)

    def log(self, records: list[Record]) -> None:
        """Logs the figures that the run lacks. A repeated step has the same ones both times."""
        metric: Any = mlflow().entities.Metric
        now_ms = round(time.time() * 1000)
        metrics: list[Any] = []
        for record in records:
            if isinstance(record, Steps):
                for step, values in series_of(record):
                    if step > self._logged["train_loss"]:
                        metrics += [metric(key, value, now_ms, step) for key, value in values.items()]
                self._logged["train_loss"] = max(self._logged["train_loss"], record.last_step)
            elif isinstance(record, Validated) and record.step > self._logged["val_loss"]:
                # MLflow draws 320 points of each series and pairs two series by step, so held-out losses need x values
                # of their own.
                values = {"val_loss": record.loss, "val_tokens": record.tokens, "val_hours": record.train_s / 3600}
                values |= experts_of(record)
                metrics += [metric(key, value, now_ms, record.step) for key, value in values.items()]
                self._logged["val_loss"] = record.step
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + _MOST_METRICS])

    def end(self, state: str) -> None:
        with contextlib.suppress(Exception):
            self._client.set_terminated(self._id, state)


def experts_of(record: Validated) -> dict[str, float]:
    """Returns the metrics of a model's experts at a held-out loss; empty for a model without experts.

    They are the fullest expert's tokens over the mean, and the number of experts without a token, by block and over
    all.
    """
    if not record.fullest:
        return {}
    of_blocks = zip(record.fullest, record.empty, strict=True)
    return {
        "experts_max_over_mean": max(record.fullest),
        "experts_empty": float(sum(record.empty)),
        **{
            f"experts_{name}/block_{block:03d}": float(value)
            for block, (fullest, empty) in enumerate(of_blocks)
            for name, value in (("max_over_mean", fullest), ("empty", empty))
        },
    }


def series_of(record: Steps) -> list[tuple[int, dict[str, float]]]:
    """Returns metrics by step: values of each step, and at the last step also the record's own values."""
    series: list[tuple[int, dict[str, float]]] = []
    behind = len(record.losses)
    for i, loss in enumerate(record.losses):
        behind -= 1
        values = {
            "train_loss": loss,
            "grad_norm": record.grad_norms[i],
            "learning_rate": record.learning_rates[i],
            "tokens": float(record.tokens - behind * record.tokens_per_step),
            "train_hours": (record.train_s - behind * record.steps_s / len(record.losses)) / 3600,
        }
        if not behind:
            values |= {"tokens_per_s": record.tokens_per_s, "peak_gib": record.peak_gib}
            if record.trained_tokens_per_s is not None:
                values["trained_tokens_per_s"] = record.trained_tokens_per_s
        series.append((record.first_step + i, values))
    return series


def parameters(plan: TrainingPlan) -> dict[str, str]:
    recipe, last = plan.recipe, plan.phases[-1]
    precision = f"{recipe.compute_precision} compute, {recipe.state_precision} states"
    values: dict[str, Any] = {
        **recipe_fields(recipe),
        **layout_fields(last.layout),
        "precision": precision,
        "layout": last.layout.label,
        "global_batch": last.global_batch,
        "grad_accum": last.batch.grad_accum,
        "micro_batch": last.batch.micro_batch,
        "lr_schedule": plan.lr_schedule.kind,
        "warmup_tokens": plan.lr_schedule.warmup_tokens,
        "token_budget": plan.tokens,
    }
    return {key: as_text(value) for key, value in values.items() if value is not None}
