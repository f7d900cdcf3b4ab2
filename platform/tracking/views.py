"""Saved views of MLflow's pages: their runs, columns and charts, and their addresses.

MLflow stores a view as an experiment's tag and lists it under the view's name; an address names the tag. Neither the
tag nor a view's fields are documented: `tests/tracking/test_views.py` checks them in a browser.
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

from trainers.spec.layout_axes import MODEL_PARALLEL

TAG = "mlflow.sharedViewState."
"""Prefix of an experiment's tags that hold views."""

ADDRESS = "mlflow.layoutSearch."
"""Prefix of a run's tags with the addresses of its views. MLflow hides tags that begin with its name."""

LAYOUT_PARAMS = (
    *("outcome", "engine", "sharding", "dp", *MODEL_PARALLEL, "micro_batch", "grad_accum"),
    *("checkpointing", "attention", "mlp", "experts", "loss", "compile"),
)
LAYOUT_METRICS = (
    *("tokens_per_s", "tokens_per_s_per_gpu", "step_s", "step_spread_pct", "days", "tflops_per_gpu"),
    *("share_of_peak_pct", "peak_gib", "headroom_gib", "utilization_pct", "alloc_retries"),
    *("predicted_step_s", "predicted_gib"),
)
STUDY_METRICS = ("gpus", "tokens_per_s", "days", "gpu_days", "cost", "efficiency_pct")
STUDY_TAGS = ("winner_gate", *(f"winner_{name}" for name in LAYOUT_PARAMS[1:]))
CONVERGENCE_PARAMS = (
    *("optimizer", "learning_rate", "global_batch", "grad_accum", "compression", "precision", "layout", "seed", "data"),
)
CONVERGENCE_METRICS = (
    *("val_loss", "train_loss", "tokens_to_loss", "hours_to_loss", "loss_at_equal_tokens", "loss_at_equal_hours"),
    *("loss_spread_over_seeds", "tokens_per_s"),
)
TRAINING_METRICS = ("val_loss", "train_loss", "tokens", "tokens_per_s", "grad_norm", "peak_gib")
AXES = ("engine", "sharding", *MODEL_PARALLEL, "micro_batch", "grad_accum", "checkpointing")
"""Axes of the parallel coordinates, in order; memory and speed follow."""

_RUN_NAME = "attributes.`Run Name`"
_MOST_RUNS = 100
"""Number of runs in scatter plots and parallel coordinates; more are not readable."""
_MOST_BARS = 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class View:
    key: str
    """Names the view in the experiment's tag and in the address."""
    name: str
    """The view's name in MLflow's list."""
    state: dict[str, Any]
    at_ms: int

    @property
    def tag(self) -> tuple[str, str]:
        """The experiment's tag that holds the view."""
        state = json.dumps(self.state, separators=(",", ":"))
        return TAG + self.key, json.dumps({"name": self.name, "createdAt": self.at_ms, "state": state})


def layouts_view(study: str, study_id: str, parent_id: str, at_ms: int) -> View:
    """Returns the view of a study's points: a row for each, the fastest first, and charts of their speed."""
    first, *metrics = LAYOUT_METRICS  # rows are sorted by the first column, which stays visible on a small screen
    columns = [_metric(first), *(_param(name) for name in LAYOUT_PARAMS), *(_metric(name) for name in metrics)]
    charts = [
        _bars("tokens_per_s"),
        _scatter(("METRIC", "peak_gib"), ("METRIC", "tokens_per_s")),
        _scatter(("PARAM", "micro_batch"), ("METRIC", "tokens_per_s")),
        _parallel(AXES, ("peak_gib", "tokens_per_s")),
    ]
    state = _state(f"{_of(parent_id)} and tags.role = 'measurement'", columns, charts, section=f"Layouts of {study}")
    return View(key=f"layouts-{study_id}", name=f"{study}: layouts", state=state, at_ms=at_ms)


def gates_view(study: str, study_id: str, parent_id: str, at_ms: int) -> View:
    """Returns the view of a study's numerics gates: curves of loss and gradient norm."""
    columns = [_tag("gate"), *(_param(name) for name in ("engine", "sharding", *MODEL_PARALLEL, "checkpointing"))]
    charts = [_curves("gate_loss"), _curves("gate_grad_norm")]
    state = _state(f"{_of(parent_id)} and tags.role = 'gate'", columns, charts, section=f"Numerics gates of {study}")
    return View(key=f"gates-{study_id}", name=f"{study}: numerics gates", state=state, at_ms=at_ms)


def studies_view(space: str) -> View:
    """Returns the view of a space's studies: each study's winner with its speed, days and cost."""
    columns = [*(_metric(name) for name in STUDY_METRICS), *(_tag(name) for name in STUDY_TAGS)]
    charts = [_scatter(("METRIC", "gpus"), ("METRIC", "days")), _bars("tokens_per_s")]
    state = _state("tags.role = 'study'", columns, charts, section=f"Studies of {space}")
    return View(key="studies", name="studies", state=state, at_ms=0)


def convergence_view(name: str, comparison_id: str) -> View:
    """Returns the view of a comparison: held-out and training loss against tokens and hours, grouped over seeds."""
    columns = [_tag("strategy"), *(_metric(convergence_metric) for convergence_metric in CONVERGENCE_METRICS)]
    columns += [_param(convergence_param) for convergence_param in CONVERGENCE_PARAMS]
    of_each = {"val_loss": ("val_tokens", "val_hours"), "train_loss": ("tokens", "train_hours")}
    charts = [_curves(loss, against) for loss, axes in of_each.items() for against in axes]
    runs = f"tags.comparison = '{comparison_id}' and tags.role = 'training'"
    state = _state(runs, columns, charts, section=f"Convergence: {name}")
    grouped = {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": "strategy"}]}
    state |= {"orderByKey": _metric("val_loss"), "orderByAsc": True, "groupBy": grouped}
    return View(key=f"convergence-{comparison_id}", name=f"{name}: convergence", state=state, at_ms=0)


def convergence_address(server: str, experiment_id: str, comparison_id: str) -> str:
    return _charts_address(server, experiment_id, f"convergence-{comparison_id}")


def training_view(name: str, training_id: str) -> View:
    """Returns the view of a training: held-out and training loss against tokens and hours, then other charts."""
    columns = [*map(_metric, TRAINING_METRICS), *map(_param, CONVERGENCE_PARAMS)]
    of_each = {"tokens": ("val_tokens", "tokens"), "hours": ("val_hours", "train_hours")}
    charts = [
        _curves(loss, against)
        for axes in of_each.values()
        for loss, against in zip(("val_loss", "train_loss"), axes, strict=True)
    ]
    charts += [_curves("grad_norm"), _curves("tokens_per_s")]
    state = _state(f"tags.training_id = '{training_id}'", columns, charts, section=f"Training {name}")
    return View(key=_training_key(training_id), name=f"{name}: losses", state=state, at_ms=0)


def training_address(server: str, experiment_id: str, training_id: str) -> str:
    return _charts_address(server, experiment_id, _training_key(training_id))


def _training_key(training_id: str) -> str:
    return "training-" + re.sub(r"[^A-Za-z0-9_-]", "-", training_id)


def _charts_address(server: str, experiment_id: str, key: str) -> str:
    page = f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs"
    return f"{page}?viewStateShareKey={key}&compareRunsMode=CHART"


def addresses(server: str, experiment_id: str, study_id: str) -> dict[str, str]:
    """Returns the address of each of the study's views at `server`."""
    page = f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs?viewStateShareKey="
    charts = "&compareRunsMode=CHART"
    return {
        "layouts": f"{page}layouts-{study_id}",
        "charts": f"{page}layouts-{study_id}{charts}",
        "gates": f"{page}gates-{study_id}{charts}",
        "studies": f"{page}studies",
        "scaling": f"{page}studies{charts}",
    }


def _state(runs: str, columns: Sequence[str], charts: Sequence[dict[str, Any]], *, section: str) -> dict[str, Any]:
    first = {"uuid": "view", "name": section, "columns": 2, "cardHeight": 400}
    # MLflow adds charts of all other metrics to sections with these names, so they stay closed.
    closed = [{"uuid": name, "name": f"{name} metrics"} for name in ("Model", "System")]
    return {
        "searchFilter": runs,
        "orderByKey": _metric("tokens_per_s"),
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": columns,
        "columnOrder": [_RUN_NAME, *columns],
        "columnWidths": {_RUN_NAME: 260, **{column: _width_px(column) for column in columns}},
        "runsHiddenMode": "SHOW_ALL",
        "hideEmptyCharts": True,
        "isAccordionReordered": True,  # otherwise MLflow sorts the sections itself
        "compareRunCharts": [
            {"uuid": f"chart-{n}", "deleted": False, "isGenerated": False, "metricSectionId": "view", **chart}
            for n, chart in enumerate(charts)
        ],
        "compareRunSections": [
            {
                **chart_section,
                "display": chart_section is first,
                "isReordered": True,
                "deleted": False,
                "isGenerated": False,
            }
            for chart_section in (first, *closed)
        ],
    }


def _width_px(column: str) -> int:
    """Returns a width that fits the column's title and, except for degrees, a word."""
    length = len(column.split("`")[1])
    return 34 + 7 * (length if length < 3 else max(length, 9))


def _of(parent_id: str) -> str:
    return f"tags.`mlflow.parentRunId` = '{parent_id}'"


def _param(name: str) -> str:
    return f"params.`{name}`"


def _tag(name: str) -> str:
    return f"tags.`{name}`"


def _metric(name: str) -> str:
    return f"metrics.`{name}`"


def _bars(metric: str) -> dict[str, Any]:
    return {"type": "BAR", "runsCountToCompare": _MOST_BARS, "metricKey": metric}


def _scatter(x: tuple[str, str], y: tuple[str, str]) -> dict[str, Any]:
    axes = {name: {"key": key, "type": kind} for name, (kind, key) in (("xaxis", x), ("yaxis", y))}
    return {"type": "SCATTER", "runsCountToCompare": _MOST_RUNS, **axes}


def _parallel(params: Sequence[str], metrics: Sequence[str]) -> dict[str, Any]:
    selection = {"selectedParams": list(params), "selectedMetrics": list(metrics)}
    return {"type": "PARALLEL", "runsCountToCompare": _MOST_RUNS, "showAllRuns": False, **selection}


def _curves(metric: str, against: str = "") -> dict[str, Any]:
    """Returns a chart of a metric by step, or `against` another metric."""
    axes = {"xAxisKey": "metric" if against else "step", "useGlobalXaxisKey": False, "scaleType": "linear"}
    axes |= {"lineSmoothness": 0, **({"selectedXAxisMetricKey": against} if against else {})}
    selection = {"metricKey": metric, "selectedMetricKeys": [metric]}
    return {"type": "LINE", "runsCountToCompare": _MOST_BARS, **selection, **axes}
