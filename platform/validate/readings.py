"""Readings of facts that a row leaves open: each value that the fact may have, with its chance.

A prediction is the mean over the readings, and their spread widens its interval: the facts' effects on the logarithm of
the step time are taken for independent.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from platform.cost_model import constants
from platform.cost_model.columns import Array, from_rows
from platform.cost_model.predict import Prediction, normal_cdf, predict, spread
from platform.cost_model.stacks import fact
from platform.validate.cells import Row
from platform.validate.row_software import data_parallelism_of, software_of

UNSTATED_SIGMA = constants.number("readings", "UNSTATED_SIGMA")
FLASH_CHANCE = constants.number("readings", "FLASH_CHANCE")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One value of an open fact."""

    fact: str
    chance: float
    values: Mapping[str, float] | None
    """The row of `Columns`; None for the value with which the run itself is read."""


def open_facts(
    row: Row, *, layers: int, stages: float, num_replicas: float
) -> Iterator[tuple[str, tuple[Row, Row], float]]:
    """Yields (fact, the two rows that state it, chance of the first) for each fact of two values that `row` leaves
    open.
    """
    software = software_of(row)
    chance = float(fact(software, "interleaves", False))
    if stages > 1 and not row.get("vp") and not row.get("schedule") and 0 < chance < 1 and layers % stages == 0:
        yield "vp", ({**row, "vp": f"{layers // stages:g}"}, {**row, "vp": "1"}), chance
    chance = float(fact(software, "overlaps_reduction", False))
    is_megatron = data_parallelism_of(row) == "megatron"
    if is_megatron and num_replicas > 1 and not row.get("dp_overlap") and 0 < chance < 1:
        yield "dp_overlap", ({**row, "dp_overlap": "yes"}, {**row, "dp_overlap": "no"}), chance
    stated = any(row.get(name) for name in ("attention_kernel", "flash_attention", "attention"))
    unknown = not stated and fact(software, "flash", None) is None and software in ("other", "huggingface")
    if unknown and not row.get("engine") and "A100" in row.get("gpu", ""):
        yield "flash", ({**row, "flash_attention": "yes"}, {**row, "flash_attention": "no"}), FLASH_CHANCE


def recomputation_chances(capacity_gib: float, needed_gib: Sequence[float]) -> list[float]:
    """Returns the chance of each of several ways to recompute, from the least to the most: that of the least with which
    the run fits. One error of the predicted memory, `UNSTATED_SIGMA` in log space, is common to all of them.
    """
    fits = normal_cdf(np.log(capacity_gib / np.asarray(needed_gib)) / UNSTATED_SIGMA)
    within = np.maximum.accumulate(fits[:-1])
    return np.diff(np.concatenate([[0.0], within, [1.0]])).tolist()


def predict_read(runs: Sequence[Mapping[str, float]], readings: Sequence[Sequence[Reading]]) -> Prediction:
    """Returns the prediction of each row of columns, averaged over its readings."""
    prediction = predict(from_rows(runs))
    others = [(place, reading) for place, some in enumerate(readings) for reading in some if reading.values is not None]
    if not others:
        return prediction
    seconds = predict(from_rows([reading.values for _, reading in others if reading.values is not None])).step.total_s
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
