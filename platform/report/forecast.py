"""Compares the cost model's predictions with measurements: the prediction of each batch point, and the error so far."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from platform.common.text import figure
from platform.cost_model.calibration import calibrate, gp_inputs_of_rows
from platform.cost_model.ordering import known_columns
from platform.cost_model.predict import Prediction, predict
from search_spaces.candidate import Candidate
from trainers.records.journal import StudyHeader
from trainers.records.measurement import TIMED, Measurement
from trainers.spec.cluster import Cluster

MOST_JUDGED = 256
"""Number of latest measurements used for the model's error. Correcting each by all others takes quadratic time."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Forecaster:
    """Predictions for a study's measurements; empty if the cost model does not know the device."""

    cluster: Cluster
    cap_gib: float | None = None

    def of(self, measurements: Sequence[Measurement]) -> Prediction | None:
        """Returns predictions with a row for each measurement; None for an unknown device."""
        columns = known_columns([_point(measurement) for measurement in measurements], self.cluster, self.cap_gib)
        return None if columns is None else predict(columns)

    def predictions_beside(self, measurement: Measurement, measured: Sequence[Measurement]) -> str:
        """Returns the text printed after a measurement's line: its prediction and the model's error over `measured`.

        Example: " | predicted 24,100 tokens/s (6.4 % too fast), 108 GiB | model's error so far 5.1 %, 2.0 % corrected".
        """
        predictions = self.predictions([measurement])
        if not predictions:
            return ""
        error = self.error(measured)
        return f" | predicted {predictions[0]}" + (f" | model's error so far {error}" if error else "")

    def predictions(self, measurements: Sequence[Measurement]) -> tuple[str, ...]:
        """Returns each prediction as text: "24,100 tokens/s (6.4 % too fast), 108 GiB"; empty if there are none."""
        prediction = self.of(measurements)
        if prediction is None:
            return ()
        texts: list[str] = []
        for row, measurement in enumerate(measurements):
            expected = measurement.global_batch * measurement.recipe.seq_len / float(prediction.step.total_s[row])
            off = expected / measurement.tokens_per_s - 1 if measurement.tokens_per_s else None
            error_text = "" if off is None else f" ({abs(off):.1%} too {'fast' if off > 0 else 'slow'})"
            memory = figure(float(prediction.memory.allocated_gib[row]))
            texts.append(f"{figure(expected)} tokens/s{error_text}, {memory} GiB")
        return tuple(texts)

    def error(self, measured: Sequence[Measurement]) -> str:
        """Returns the median error of step times, as predicted and as corrected by the others; "" if unknown."""
        timed = [
            measurement
            for measurement in measured
            if measurement.outcome in TIMED and measurement.step_time_s and not measurement.repeat
        ]
        timed = timed[-MOST_JUDGED:]
        points = [_point(measurement) for measurement in timed]
        columns = known_columns(points, self.cluster, self.cap_gib)
        if columns is None:
            return ""
        prediction = predict(columns)
        places = gp_inputs_of_rows([point.axes for point in points], columns, prediction)
        steps = np.array([measurement.step_time_s or 0.0 for measurement in timed])
        learned = calibrate(places, prediction, np.arange(len(steps)), steps)
        return f"{learned.error_before:.1%}, {learned.error_after:.1%} corrected"


def forecaster_of(header: StudyHeader) -> Forecaster:
    return Forecaster(cluster=header.cluster, cap_gib=header.cap_gib)


def _point(measurement: Measurement) -> Candidate:
    return Candidate(
        recipe=measurement.recipe, layout=measurement.layout, micro_batches=(measurement.batch.micro_batch,)
    )
