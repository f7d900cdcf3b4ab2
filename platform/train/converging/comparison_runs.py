"""Writes a comparison to MLflow: figures on each training's run, a run with picture and answer, and a saved view."""

import dataclasses
import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platform.tracking.client import connected
from platform.tracking.content import rounded
from platform.tracking.uri import check_uri, default_uri, display_uri, without_secrets
from platform.tracking.urls import page_server, viewing_lines
from platform.tracking.views import convergence_address, convergence_view
from platform.train.converging.verdict import CurvePoints, StrategyVerdict


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonFacts:
    """The facts of a comparison that MLflow shows beside the verdict."""

    id: str
    name: str
    model: str
    """Name of the MLflow experiment."""
    target_loss: float | None
    lines: tuple[str, ...]
    """Sentences of the answer."""
    files: tuple[Path, ...]


def log_comparison(compared: ComparisonFacts, verdict: StrategyVerdict, studies: Path) -> str:
    """Updates MLflow; returns the addresses to view it, or a sentence on why it could not be updated."""
    uri = check_uri(os.environ.get("MLFLOW_TRACKING_URI") or default_uri(studies))
    try:
        return viewing_lines(uri, {"losses": _log(compared, verdict, uri)})
    except Exception as error:  # MLflow raises many kinds of errors if the server does not answer or refuses
        reason = without_secrets(" ".join(str(error).split())[:200], uri)
        return f"MLflow at {display_uri(uri)} lacks the comparison ({reason}): the same command brings it up to date."


def _log(compared: ComparisonFacts, verdict: StrategyVerdict, uri: str) -> str:
    client, experiment = connected(uri, compared.model)
    place = experiment.experiment_id
    runs = client.search_runs([place], f"tags.comparison = '{compared.id}'", max_results=1000)
    for run in runs:
        tags = run.data.tags
        if tags.get("role") != "training" or tags.get("strategy") not in verdict.marks:
            continue
        mark_by_seed = verdict.marks[tags["strategy"]]
        marks = mark_by_seed.get(int(run.data.params.get("seed", -1)))
        if marks is not None:
            _log_scalars(client, run.info.run_id, _scalars(marks) | _spread(verdict, tags["strategy"]))
    comparison_run = next((run for run in runs if run.data.tags.get("role") == "comparison"), None)
    if comparison_run is None:
        tags = {"comparison": compared.id, "role": "comparison"}
        comparison_run = client.create_run(place, tags=tags, run_name=compared.name)
    run_id = comparison_run.info.run_id
    client.set_tag(run_id, "mlflow.note.content", "\n\n".join(compared.lines)[:5000])
    if compared.target_loss is not None:
        _log_scalars(client, run_id, {"target_loss": compared.target_loss})
    for path in compared.files:
        client.log_artifact(run_id, str(path))
    client.set_terminated(run_id, "FINISHED")
    view = convergence_view(compared.name, compared.id)
    client.set_experiment_tag(place, *view.tag)
    return convergence_address(page_server(uri), place, compared.id)


def _scalars(marks: CurvePoints) -> dict[str, float]:
    return {
        name: value for name, value in dataclasses.asdict(marks).items() if value is not None and name != "tokens_per_s"
    }


def _spread(verdict: StrategyVerdict, strategy: str) -> dict[str, float]:
    spread = verdict.spread(strategy)
    return {} if spread is None else {"loss_spread_over_seeds": spread}


def _log_scalars(client: Any, run_id: str, values: Mapping[str, float]) -> None:
    metric: Any = importlib.import_module("mlflow.entities").Metric
    now_ms = round(time.time() * 1000)
    client.log_batch(run_id, metrics=[metric(name, rounded(value), now_ms, 0) for name, value in values.items()])
