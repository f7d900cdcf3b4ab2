"""Predicts the runs of a measured table, each cell separately; pairs predictions with measurements (see `scores`)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from platform.cost_model.calibration import calibrate, gp_inputs_of_rows
from platform.cost_model.columns import Array, Mask, from_rows
from platform.cost_model.memory import PeakMemory, outside_gib
from platform.cost_model.predict import Prediction
from platform.cost_model.stalls import interval
from platform.validate.published_run import PublishedRun, axes_of, resolved
from platform.validate.readings import predict_read


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """Runs with their predictions; arrays have one row per run, NaN if the run has no measured figure."""

    runs: Sequence[PublishedRun]
    measured_s: Array
    measured_gib: Array
    out_of_memory: Mask
    predicted_s: Array
    zero_shot_s: Array
    low_s: Array
    high_s: Array
    expected_s: Array
    predicted_gib: Array
    predicted_fits: Mask
    ok_probability: Array
    """Probability of running within memory, including the allocator's pools."""
    rate: Array
    """FLOP/s per device at one second per step (model FLOPs), which makes times of different models comparable."""
    used: Mask
    """Rows used for calibration, which are not scored."""


STATED = (
    "software", "attention_kernel", "fused", "compile", "offload", "zero_group", "tp_overlap", "dp_overlap", "cp_comm",
    "matmul_precision",
    "precision", "seq_parallel", "flash_attention", "attention", "loss",
)  # fmt: skip
"""Columns that distinguish configurations even if the predictor treats their values the same."""

SIZES = ("layers", "hidden", "seq_len")
"""Sizes of a model by which the error of one model's predictions differs from another's."""


def merged(runs: Sequence[PublishedRun]) -> list[PublishedRun]:
    """Merges identical configurations of a cell: median time and memory; out of memory if most of the runs were."""
    groups: dict[tuple[object, ...], list[PublishedRun]] = {}
    for run in resolved(runs):
        stated = tuple(run.row.get(name, "") for name in STATED)
        key = (run.cell, run.cluster.name, stated, tuple(sorted(run.values.items())))
        groups.setdefault(key, []).append(run)
    result: list[PublishedRun] = []
    for group in groups.values():
        times = [run.step_time_s for run in group if run.step_time_s is not None]
        peaks = [run.peak_memory_gib for run in group if run.peak_memory_gib is not None]
        result.append(
            dataclasses.replace(
                group[0],
                step_time_s=float(np.median(times)) if times else None,
                peak_memory_gib=float(np.median(peaks)) if peaks else None,
                out_of_memory=2 * sum(run.out_of_memory for run in group) > len(group),
                num_merged=len(group),
            )
        )
    return result


def model_flops(run: PublishedRun) -> float:
    """Returns the model FLOPs of a step; attention counts only its lower triangle."""
    tokens = run.values["global_batch"] * run.values["seq_len"]
    return run.model.flops_per_token(int(run.values["seq_len"])) * tokens


def predicted(runs: Sequence[PublishedRun]) -> Prediction:
    """Returns the prediction of each run, averaged over the readings of facts that its row does not state."""
    return predict_read([run.values for run in runs], [run.readings for run in runs])


def score_table(runs: Sequence[PublishedRun], *, num_calibrate: int = 0) -> Scored:
    """Predicts merged `runs`, each cell calibrated with `num_calibrate` of its own configurations."""
    prediction = predicted(runs)
    measured = _measured_s(runs)
    used = np.zeros(len(runs), dtype=bool)
    times = _times(prediction)
    if num_calibrate:
        for rows in cells_of(runs).values():
            index = np.array(rows)
            chosen, corrected = _search([runs[row] for row in rows], measured[index], num_calibrate)
            used[index[chosen]] = True
            times[:, index] = _times(corrected)
    return _scored(runs, prediction, times, used)


def score_by_others(runs: Sequence[PublishedRun], teaching: Sequence[PublishedRun]) -> Scored:
    """Predicts merged `runs`, calibrated with the measurements of `teaching`, runs of other cells."""
    prediction = predicted(runs)
    timed = [run for run in teaching if run.step_time_s is not None]
    both = [*timed, *runs]
    columns = from_rows([run.values for run in both])
    every = predicted(both)
    axes = [axes_of(run) | {name: int(run.values[name]) for name in SIZES} for run in both]
    places = gp_inputs_of_rows(axes, columns, every, num_measured=len(timed) or None)
    corrected = calibrate(places, every, np.arange(len(timed)), _measured_s(timed)).corrected
    return _scored(runs, prediction, _times(corrected)[:, len(timed) :], np.zeros(len(runs), dtype=bool))


def join(parts: Sequence[Scored]) -> Scored:
    """Concatenates the rows of all `parts`."""
    arrays = [field.name for field in dataclasses.fields(Scored) if field.name != "runs"]
    return Scored(
        runs=[run for part in parts for run in part.runs],
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in arrays},
    )


def _times(prediction: Prediction) -> Array:
    """Returns [figures, rows]: median, lower end, upper end and mean of the step time, s."""
    return np.array([prediction.step.total_s, prediction.low_s, prediction.high_s, prediction.expected_s])


def _measured_s(runs: Sequence[PublishedRun]) -> Array:
    return np.array([run.step_time_s or np.nan for run in runs])


def _scored(runs: Sequence[PublishedRun], prediction: Prediction, times: Array, used: Mask) -> Scored:
    total, low, high, expected = times
    memory = prediction.memory
    return Scored(
        runs=runs,
        measured_s=_measured_s(runs),
        measured_gib=np.array([run.peak_memory_gib or np.nan for run in runs]),
        out_of_memory=np.array([run.out_of_memory for run in runs]),
        predicted_s=total,
        zero_shot_s=np.asarray(prediction.step.total_s),
        low_s=low,
        high_s=high,
        expected_s=expected,
        predicted_gib=_printed_gib(runs, memory),
        predicted_fits=np.asarray(prediction.fits),
        ok_probability=np.asarray(prediction.ok_probability),
        rate=np.array([model_flops(run) / run.cluster.num_devices for run in runs]),
        used=used,
    )


def _printed_gib(runs: Sequence[PublishedRun], memory: PeakMemory) -> Array:
    """Returns the predicted peak of each run for the kind of peak and the rank that the run reports: the fullest rank
    in this project's runs, usually the first rank in others.
    """
    kinds = np.array([run.peak_kind for run in runs])
    of_this_project = np.array([bool(run.row.get("engine")) for run in runs])
    allocated = np.where(of_this_project, memory.allocated_gib, memory.first_allocated_gib)
    device = np.where(of_this_project, memory.device_gib, memory.first_device_gib)
    reserved = device - np.array([outside_gib(run.values) for run in runs])
    return np.select([kinds == "allocated", kinds == "reserved"], [allocated, reserved], device)


def part(scored: Scored, rows: Sequence[int]) -> Scored:
    """Returns the score of some rows alone."""
    arrays = [field.name for field in dataclasses.fields(Scored) if field.name != "runs"]
    return Scored(
        runs=[scored.runs[row] for row in rows], **{name: getattr(scored, name)[list(rows)] for name in arrays}
    )


def cells_of(runs: Sequence[PublishedRun]) -> dict[tuple[str, ...], list[int]]:
    """Returns the positions of the runs of each cell."""
    cells: dict[tuple[str, ...], list[int]] = {}
    for position, run in enumerate(runs):
        cells.setdefault(run.cell, []).append(position)
    return cells


def _search(runs: Sequence[PublishedRun], measured: Array, budget: int) -> tuple[list[int], Prediction]:
    """Selects `budget` runs as a search would: always the unmeasured run with the lowest lower end of the 80 % interval
    without stalls. Returns (positions of the selected runs, prediction calibrated with them).

    Runs without a time (out of memory) are never selected, because they give no information about time.
    """
    columns, prediction = from_rows([run.values for run in runs]), predicted(runs)
    places = gp_inputs_of_rows([axes_of(run) for run in runs], columns, prediction)
    chosen: list[int] = []
    corrected = prediction
    candidates = np.flatnonzero(np.isfinite(measured)).tolist()
    while len(chosen) < min(budget, len(candidates)):
        unmeasured = [row for row in candidates if row not in chosen]
        could = corrected.step.total_s * np.exp(interval(corrected.sigma, np.zeros(()))[0])
        chosen.append(min(unmeasured, key=could.__getitem__))
        rows = np.array(chosen)
        corrected = calibrate(places, prediction, rows, measured[rows]).corrected
    return chosen, corrected


def constant_mfu(scored: Scored) -> Scored:
    """Returns the baseline: one fraction of the peak for all rows (the rows' median), without memory and intervals."""
    peak = np.array([run.values["peak_flops"] for run in scored.runs])
    unit = scored.rate / peak
    timed = np.isfinite(scored.measured_s) & ~scored.used
    share = float(np.median(unit[timed] / scored.measured_s[timed])) if timed.any() else 1.0
    nothing = np.full(len(scored.runs), np.nan)
    return dataclasses.replace(
        scored,
        predicted_s=unit / share,
        expected_s=unit / share,
        low_s=nothing,
        high_s=nothing,
        predicted_gib=nothing,
        predicted_fits=np.ones(len(scored.runs), dtype=bool),
        ok_probability=np.ones(len(scored.runs)),
    )
