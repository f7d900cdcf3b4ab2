"""Readings of facts that a row does not state: the possible values and their probabilities.

A prediction is the mean over the readings, and their spread widens its interval. The effects of different facts on the
logarithm of the step time are assumed to be independent.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, from_rows
from platform.cost_model.hardware import ClusterSpec
from platform.cost_model.predict import Prediction, normal_cdf, predict, spread
from platform.cost_model.stacks import fact
from platform.validate.cells import Row
from platform.validate.published import is_flash, precision_of
from platform.validate.row_software import data_parallelism_of, software_of

UNSTATED_SIGMA = constants.number("readings", "UNSTATED_SIGMA")
FLASH_CHANCE = constants.number("readings", "FLASH_CHANCE")
CUDNN_CHANCE = constants.number("readings", "CUDNN_CHANCE")
EITHER = constants.number("readings", "EITHER")
Readings = Sequence[tuple[Row, float]]
"""Copies of a row, each with one value of an open fact, with the probability of the value."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One value of an open fact."""

    fact: str
    chance: float
    values: Mapping[str, float]
    """The row of `Columns`."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The size of a run, which decides which facts affect it."""

    layers: int
    stages: float
    width: float
    """Tensor-parallel ranks."""
    tokens: float
    """Context-parallel ranks."""
    replicas: float


def open_facts(row: Row, cluster: ClusterSpec, size: Size) -> Iterator[tuple[str, Readings]]:
    """Yields (fact, readings) for each fact that affects the run and is given neither by `row` nor by its software."""
    software = software_of(row)

    def either(column: str, first: str, second: str, chance: float) -> tuple[str, Readings]:
        return column, [({**row, column: first}, chance), ({**row, column: second}, 1 - chance)]

    chance = float(fact(software, "interleaves", False))
    if size.stages > 1 and not row.get("vp") and not row.get("schedule") and size.layers % size.stages == 0:
        yield either("vp", f"{size.layers // size.stages:g}", "1", chance)
    if data_parallelism_of(row) == "megatron" and size.replicas > 1 and not row.get("dp_overlap"):
        yield either("dp_overlap", "yes", "no", float(fact(software, "overlaps_reduction", False)))
    if size.width > 1 and not row.get("seq_parallel"):
        yield either("seq_parallel", "yes", "no", float(fact(software, "sequence_parallel", False)))
    if size.tokens > 1 and not row.get("cp_comm") and fact(software, "cp_comm", None) is None:
        yield either("cp_comm", "ring", "all_to_all", EITHER)
    scaled = precision_of(row)[0] == "fp8" and not row.get("float8_scaling")
    if scaled and fact(software, "float8_scaling", None) is None:
        yield either("float8_scaling", "tensorwise", "rowwise", EITHER)
    named = row.get("attention_kernel") or row.get("attention")
    flash, either_way = is_flash(row, cluster), not row.get("flash_attention") and "A100" in cluster.device.name
    if not named and not flash and either_way and fact(software, "flash", None) is None:
        yield either("flash_attention", "yes", "no", FLASH_CHANCE)
    if not named and flash and cluster.device.architecture == "Hopper" and fact(software, "flash_kernel", None) is None:
        yield either("attention_kernel", "te", "flash2", CUDNN_CHANCE)


def recomputation_chances(capacity_gib: float, needed_gib: Sequence[float]) -> list[float]:
    """Returns the probability of each way to recompute, ordered from least to most recomputation: the probability that
    it is the first with which the run fits. All ways share one error of the predicted memory, with a log deviation of
    `UNSTATED_SIGMA`.
    """
    fits = normal_cdf(np.log(capacity_gib / np.asarray(needed_gib)) / UNSTATED_SIGMA)
    within = np.maximum.accumulate(fits[:-1])
    return np.diff(np.concatenate([[0.0], within, [1.0]])).tolist()


def predict_read(runs: Sequence[Mapping[str, float]], readings: Sequence[Sequence[Reading]]) -> Prediction:
    """Returns the prediction of each row of columns, averaged over its readings."""
    prediction = predict(from_rows(runs))
    others = [(place, reading) for place, some in enumerate(readings) for reading in some]
    if not others:
        return prediction
    seconds = predict(from_rows([reading.values for _, reading in others])).step.total_s
    base = prediction.step.total_s
    shift, variance = np.zeros(len(runs)), np.zeros(len(runs))
    by_fact: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for (place, reading), other in zip(others, seconds.tolist(), strict=True):
        by_fact.setdefault((place, reading.fact), []).append((reading.chance, np.log(other / base[place])))
    for (place, _), effects in by_fact.items():
        chances, logs = np.array(effects).T
        mean = float(chances @ logs)
        shift[place] += mean
        variance[place] += float(chances @ logs**2) - mean**2
    return _moved(prediction, shift, variance)


def _moved(prediction: Prediction, shift: Array, variance: Array) -> Prediction:
    step, scale = prediction.step, np.exp(shift)
    step = dataclasses.replace(
        step, **{field.name: getattr(step, field.name) * scale for field in dataclasses.fields(step)}
    )
    sigma = np.sqrt(prediction.sigma**2 + variance)
    return dataclasses.replace(prediction, step=step, **spread(step, sigma, prediction.stall, prediction.stalled_s))
