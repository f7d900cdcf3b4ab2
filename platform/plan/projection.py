"""Corrects a plan by a study: uses measured step times, and corrects the predictions of the other points."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from platform.common.errors import InputError
from platform.common.text import plural
from platform.cost_model.calibration import calibrate, gp_inputs_of_rows
from platform.cost_model.columns import Array, Columns, Mask
from platform.cost_model.engines import costs
from platform.cost_model.features import joined
from platform.cost_model.hardware import THIS_PROJECT, ClusterSpec, find_device, from_cluster
from platform.cost_model.predict import Prediction, predict, spread, take
from platform.cost_model.regression import NOISE_SIGMA
from platform.plan.software import Point, planned_columns
from trainers.records.measurement import TIMED, Measurement
from trainers.spec.axis import axes_of
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """The prediction of a plan's points, corrected by a study."""

    prediction: Prediction
    measured: Mask
    """Points with a measured step time."""
    sentence: str
    """Sentence for the user on the corrections and measurements."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StudyPrior:
    """Measured step times of a study."""

    name: str
    cluster: Cluster
    measurements: tuple[Measurement, ...]
    memory_capped: bool = False
    """Whether the plan caps device memory. The study ran without the cap, so a measured point may not fit."""

    @classmethod
    def of(cls, name: str, cluster: Cluster, measurements: Sequence[Measurement], software: str) -> "StudyPrior":
        """Keeps the `measurements` with a step time and an engine that the cost model knows.

        Raises:
            InputError: there are none, or `software` is not this project's.
        """
        if software != THIS_PROJECT:
            raise InputError(f"--learn-from names a study of {THIS_PROJECT}, got --software {software}: leave one out")
        find_device(cluster.device)
        timed = tuple(
            measurement
            for measurement in measurements
            if measurement.outcome in TIMED
            and measurement.step_time_s
            and not measurement.repeat
            and costs(measurement.layout.rules.name) is not None
        )
        if not timed:
            raise InputError(f"study {name} has no step time to learn from: name one that measured a layout")
        return cls(name=name, cluster=cluster, measurements=timed)

    def project(
        self, points: Sequence[Point], columns: Columns, prediction: Prediction, cluster: ClusterSpec
    ) -> Projection:
        """Corrects the `prediction` of `points` on `cluster`."""
        measured_points = [
            (measurement.recipe, measurement.layout, measurement.batch) for measurement in self.measurements
        ]
        origin = from_cluster(self.cluster)
        both = joined([planned_columns(measured_points, origin), columns])
        axes = [_axes(point, origin) for point in measured_points] + [_axes(point, cluster) for point in points]
        everything = predict(both)
        steps = np.array([measurement.step_time_s or 0.0 for measurement in self.measurements])
        places = gp_inputs_of_rows(axes, both, everything, num_measured=len(measured_points))
        calibration = calibrate(places, everything, np.arange(len(measured_points)), steps)
        # Memory predictions are kept: `both` has the catalogue's capacity, but the caller may have capped it.
        step = take(calibration.corrected, slice(len(measured_points), None))
        corrected = dataclasses.replace(
            prediction, step=step.step, sigma=step.sigma, stall=step.stall, low_s=step.low_s, high_s=step.high_s
        )
        measured = self._measured_s(points, cluster)
        is_measured = np.isfinite(measured)
        errors = f"{calibration.error_before:.1%} off as predicted, {calibration.error_after:.1%} by the others of them"
        sentence = (
            f"learned from {plural(len(measured_points), 'step time')} of {self.name} on {self.cluster.label}"
            f" ({errors}); {_basis(int(is_measured.sum()), len(points), origin, cluster)}"
        )
        return Projection(prediction=_with_measured(corrected, measured), measured=is_measured, sentence=sentence)

    def _measured_s(self, points: Sequence[Point], cluster: ClusterSpec) -> Array:
        """Returns the median measured step time of each point, s, on the same devices; NaN if not measured."""
        times: dict[tuple[str, str, int], list[float]] = {}
        if _same_devices(from_cluster(self.cluster), cluster):
            for measurement in self.measurements:
                key = (measurement.recipe.id, measurement.layout.id, measurement.batch.micro_batch)
                times.setdefault(key, []).append(measurement.step_time_s or 0.0)
        times_of = [times.get((recipe.id, layout.id, batch.micro_batch)) for recipe, layout, batch in points]
        return np.array([np.median(time_) if time_ else np.nan for time_ in times_of])


def _same_devices(a: ClusterSpec, b: ClusterSpec) -> bool:
    return (a.device.name, a.num_nodes, a.devices_per_node) == (b.device.name, b.num_nodes, b.devices_per_node)


def _basis(num_measured: int, num_points: int, origin: ClusterSpec, cluster: ClusterSpec) -> str:
    """Returns text on measured and predicted step times, and on differences to the study's devices."""
    basis = f"{num_measured} of {num_points:,} points measured, the others predicted"
    if not num_measured:
        basis = "every step time predicted"
    if origin.device.name != cluster.device.name:
        basis += f", {cluster.device.name} from {origin.device.name}"
    if cluster.num_nodes > 1 and origin.num_nodes == 1:
        basis += "; nothing between nodes was measured"
    return basis


def _axes(point: Point, cluster: ClusterSpec) -> dict[str, Any]:
    """Returns the values that distinguish points: the axes of the layout, the device and the number of nodes."""
    _, layout, _ = point
    axes = {name: getattr(layout, name) for name in axes_of(Layout)}
    return {**axes, "device": cluster.device.name, "nodes": cluster.num_nodes}


def _with_measured(prediction: Prediction, measured: Array) -> Prediction:
    """Returns `prediction` with measured step times where there are any, and the interval of a measurement for them."""
    is_measured = np.isfinite(measured)
    scale = np.where(is_measured, measured / prediction.step.total_s, 1.0)
    parts = {field.name: getattr(prediction.step, field.name) * scale for field in dataclasses.fields(prediction.step)}
    sigma = np.where(is_measured, NOISE_SIGMA, prediction.sigma)
    step = dataclasses.replace(prediction.step, **parts)
    return dataclasses.replace(
        prediction, step=step, **spread(step, sigma, np.where(is_measured, 0.0, prediction.stall), prediction.stalled_s)
    )
