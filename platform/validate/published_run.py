"""Reads rows of measured tables, one per run with the project's table header, into columns, or returns a reason to
skip.

Besides the project's own tables the reader accepts published ones. For facts that a row does not state it uses those of
the row's stack at the time (`stacks`); rows that contradict themselves are skipped.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast, get_args

import numpy as np

from platform.cost_model.columns import Columns, from_rows
from platform.cost_model.features import TrainingWork, features
from platform.cost_model.hardware import ClusterSpec
from platform.cost_model.layout_arrays import LayoutArrays
from platform.cost_model.memory import FRAGMENTATION, outside_gib
from platform.cost_model.mesh import STAGE_COLUMNS
from platform.cost_model.predict import predict
from platform.cost_model.stacks import fact, runs
from platform.validate.cells import Row, choice, number, positive_number, within_node
from platform.validate.facts import WORDS
from platform.validate.published import modules_of, moments_of, precision_of, stack_features
from platform.validate.readings import Reading, Size, open_facts, recomputation_chances
from platform.validate.row_parts import batch_of, cluster_of_row, layout_of_row, model_of
from platform.validate.row_software import STAGES, software_of
from trainers.records.measurement import TIMED, Outcome
from trainers.spec.adapters import ALL_LINEAR
from trainers.spec.layout_axes import CUTTING, DATA_PARALLEL, MODEL_PARALLEL
from trainers.spec.model import FlopsConvention, ModelSpec
from trainers.spec.recipe import Recipe

GUESSED = "software not stated, taken for {} by the words of source and notes"
UNSTATED_CHECKPOINTING = "activation_ckpt not stated, averaged over what may fit"
OPEN = "{} not stated, averaged over what it may be"
CONFIGURED_CHECKPOINTING = "activation_ckpt is a simulator's, taken for none where the run fits without"
CELL = ("model", "gpu", "gpus", "seq_len", "global_batch", "recipe")
"""Columns with the same value in all runs of a cell; runs of one cell compete. Published tables have no recipe."""

FIGURES = ("iter_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "hfu", "peak_mem_gb", *WORDS)
"""Columns that do not affect the configuration: figures, and prose, whose facts have their own columns."""
LEAST_CHANCE = 0.01
"""Probability below which a way to recompute is ignored."""

PeakKind = Literal["allocated", "reserved", "device"]
"""Kind of a peak: the allocator's tensors, the allocator's reserved memory, or the whole device."""

AXES = {
    "words": ("engine", "checkpointing", "offload", "grad_sync", "mlp"),
    "numbers": ("zero_stage", *MODEL_PARALLEL, "virtual", *DATA_PARALLEL),
    "values": ("checkpoint_blocks", "micro_batch"),
    "texts": (
        "attention", "flash_attention", "attention_kernel", "fused", "loss", "compile", "optimizer", "state_precision",
        "seq_parallel", "tp_overlap", "dp_overlap", "cp_comm",
        "zero_group",
    ),
}  # fmt: skip
"""Sources of a run's axes: words and numbers of the layout, values of the stack, texts of the row."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRun:
    """A row, interpreted."""

    row: Row
    cell: tuple[str, ...]
    """The row's values of `CELL`; "" if not stated."""
    model: ModelSpec
    cluster: ClusterSpec
    precision: str
    layout: Mapping[str, str | float]
    """The run's layout by axis. `engine` is the data parallelism of the run's stack."""
    values: Mapping[str, float]
    """One row of `Columns`."""
    step_time_s: float | None
    peak_memory_gib: float | None
    """GiB. Published figures come from nvidia-smi, whose GB are 2**30 bytes."""
    peak_kind: PeakKind
    out_of_memory: bool
    assumed: tuple[str, ...] = ()
    """Texts on assumed facts that the row does not state; rows with the same assumption have the same text."""
    num_merged: int = 1
    readings: tuple[Reading, ...] = ()
    """Alternative values of facts that the row does not state."""

    @property
    def allocated_gib(self) -> float | None:
        """GiB of the allocator's tensors at the peak; None if the reported peak does not determine it."""
        if self.peak_memory_gib is None or self.peak_kind == "device":
            return None
        return self.peak_memory_gib / (1 + FRAGMENTATION * (self.peak_kind == "reserved"))


def _columns(row: Row, model: ModelSpec, cluster: ClusterSpec, layout: Mapping[str, str | float]) -> Columns:
    layouts = LayoutArrays.of([layout])
    samples, split, stages = (layouts.parts(cut).item() for cut in ("samples", "width", "depth"))
    micro_batch, grad_accum = batch_of(row, samples)
    precision, state_bytes, _ = precision_of(row)
    work = TrainingWork(
        model=model,
        modules=modules_of(row),
        seq_len=positive_number(row, "seq_len"),
        precision=precision,
        state_bytes=state_bytes,
        moments=moments_of(row, model, stages),
        gathered_bytes=1.0 if row.get("engine") and row["precision"] == "fp8_tensorwise" else None,
        # Blackwell's matrix units apply block scales themselves.
        is_rowwise=row.get("float8_scaling") == "rowwise"
        or (row.get("float8_scaling") == "blockwise" and cluster.device.architecture != "Blackwell"),
        compression=row.get("compression", "") or "none",
    )
    work = dataclasses.replace(work, **_of_adapter(row, model))
    return features(
        work,
        layouts,
        cluster,
        micro_batch=np.array([micro_batch]),
        grad_accum=np.array([grad_accum]),
        stack={
            **stack_features(row, work, cluster, split),
            # Other software's rows do not state how stages are split.
            **({} if row.get("engine") else dict.fromkeys(STAGE_COLUMNS, 0.0)),
        },
    )


def _of_adapter(row: Row, model: ModelSpec) -> dict[str, Any]:
    """Returns the fields of a row's work in which adapters beside a frozen model differ from training all of it."""
    if row.get("adapter", "none") in ("", "none"):
        return {}
    recipe: dict[str, Any] = {
        "compute_precision": row["precision"],
        "state_precision": row.get("state_precision") or "fp32",
        "adapter": row["adapter"],
        "lora_targets": row.get("lora_targets") or ALL_LINEAR,
    }
    work = TrainingWork.of(Recipe(model=model, seq_len=positive_number(row, "seq_len"), global_batch=1, **recipe))
    fields = ("adapter_rank", "adapted", "stored_bytes", "quantised", "gathered_bytes")
    return {name: getattr(work, name) for name in fields}


def _step_time_s(row: Row, values: Mapping[str, float], model: ModelSpec) -> float | None:
    """Returns the seconds of a step: as reported, from tokens/s, or from TFLOP/s if the FLOP convention is stated."""
    printed, rate, tflops = (number(row, name) for name in ("iter_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu"))
    if printed:
        return printed
    tokens = values["global_batch"] * values["seq_len"]
    gpus = positive_number(row, "gpus")
    if rate:
        return tokens / gpus / rate
    convention = choice(row, "flops", get_args(FlopsConvention))
    if tflops and convention:
        return (
            model.flops_per_token(int(values["seq_len"]), cast(FlopsConvention, convention))
            * tokens
            / gpus
            / (tflops * 1e12)
        )
    return None


def interpret(row: Row, *, measured: bool = True) -> PublishedRun:
    """Returns the run of a row. With `measured` False the row may lack measured figures.

    Raises:
        ValueError: a value is missing, unknown or contradictory; the message names it.
    """
    guessed = "software" in row.get("from_words", "").split(";")
    assumed = (GUESSED.format(software_of(row)),) if guessed else ()
    assumed = (*assumed, *_not_run(row))
    configured = _is_configured(row)
    if (row["activation_ckpt"] and not configured) or row.get("engine") or row["status"] != "ok":
        return _with_readings(_interpret(row, measured=measured), assumed)
    if configured:
        run = _interpret({**row, "activation_ckpt": "none"}, measured=measured)
        if not predict(from_rows([run.values])).fits.all():
            run = _interpret(row, measured=measured)
        return dataclasses.replace(run, row=row, assumed=(*assumed, CONFIGURED_CHECKPOINTING))
    # The run completed, so it did fit; recomputing more than necessary would have cost time.
    ways = [_interpret({**row, "activation_ckpt": way}, measured=measured) for way in ("none", "selective", "full")]
    needed = predict(from_rows([way.values for way in ways])).memory.needed_gib
    chances = recomputation_chances(ways[0].values["capacity_gib"], needed.tolist())
    likeliest = chances.index(max(chances))
    readings = tuple(
        Reading(fact="activation_ckpt", chance=chance, values=way.values)
        for way, chance in zip(ways, chances, strict=True)
        if way is not ways[likeliest] and chance > LEAST_CHANCE
    )
    run = dataclasses.replace(ways[likeliest], readings=readings)
    return dataclasses.replace(_with_readings(run, (*assumed, UNSTATED_CHECKPOINTING)), row=row)


def _with_readings(run: PublishedRun, assumed: tuple[str, ...]) -> PublishedRun:
    """Returns the run with the readings of its row's open facts of two values, and the texts of these assumptions."""
    readings, named = list(run.readings), list(assumed)
    if not run.row.get("engine"):
        stages, width, tokens = (
            float(np.prod([run.values[name] for name in CUTTING[cut]])) for cut in ("depth", "width", "tokens")
        )
        size = Size(layers=run.model.num_layers, stages=stages, width=width, tokens=tokens, replicas=run.values["dp"])
        for name, rows in open_facts(run.row, run.cluster, size):
            if max(chance for _, chance in rows) > 1 - LEAST_CHANCE:
                continue
            for row, chance in rows:
                values = _interpret(row, measured=False).values
                if values != run.values:
                    readings.append(Reading(fact=name, chance=chance, values=values))
            named.append(OPEN.format(name))
    return dataclasses.replace(run, readings=tuple(readings), assumed=tuple(named))


def _not_run(row: Row) -> Iterator[str]:
    """Yields a remark if the row's software is not known to support the row's strategy and degrees. The row is then
    read with its stack's engine for the strategy.
    """
    software, strategy = software_of(row), row["strategy"]
    if row.get("engine") or "software" in row.get("from_words", "").split(";"):
        return
    if strategy in STAGES and strategy not in runs(software):
        yield f"{software} trains with no {strategy} that is known"
        return
    degrees = {**{name: name for name in MODEL_PARALLEL}, "vp": "virtual"}
    lacks = [name for name, degree in degrees.items() if degree not in runs(software).get(strategy, ())]
    if beside := [name for name in lacks if (number(row, name) or 1) > 1]:
        yield f"{software} has no {' and '.join(beside)} beside {strategy} that is known"


def _is_configured(row: Row) -> bool:
    """Returns whether a row's recomputation comes from a configuration that the software ignores within one node."""
    derived = any(part.startswith("activation_ckpt") for part in row.get("derived", "").split(";"))
    return derived and within_node(row) and bool(fact(software_of(row), "recomputes_to_fit_in_node", False))


def resolved(runs: Sequence[PublishedRun]) -> list[PublishedRun]:
    """Returns the runs with the stated recomputation for all runs of a model if one of its runs would not fit without
    it, because a study runs each model with one configuration.
    """
    recomputed = {run.model for run in runs if _is_unsettled(run) and run.values["full_checkpointing"] > 0}
    return [
        dataclasses.replace(_interpret(run.row, measured=False), num_merged=run.num_merged)
        if _is_unsettled(run) and run.model in recomputed
        else run
        for run in runs
    ]


def label_of(cell: tuple[str, ...], *, alone: bool) -> str:
    """Returns text such as "GPT 181B, 384 x A100-SXM4-80GB, length 2048, batch 2048" for the values of `CELL`. The
    recipe is appended unless `alone`: the cell differs from every other cell in more than the recipe.
    """
    model, gpu, gpus, seq_len, global_batch, recipe = cell
    label = f"{model}, {gpus} x {gpu}, length {seq_len}, batch {global_batch}"
    return label if alone else f"{label}, recipe {recipe or 'not stated'}"


def _is_unsettled(run: PublishedRun) -> bool:
    return CONFIGURED_CHECKPOINTING in run.assumed


def _interpret(row: Row, *, measured: bool) -> PublishedRun:
    if row["status"] not in ("ok", "oom", "crash_or_oom"):
        raise ValueError(f"status {row['status'] or row.get('outcome') or 'not stated'}")
    if row.get("outcome") and row["outcome"] not in set(Outcome):
        raise ValueError(f"outcome {row['outcome']!r} is not one of {', '.join(Outcome)}")
    if not row.get("engine") and any((number(row, name) or 1) > 1 for name in CUTTING["experts"]):
        raise ValueError("expert parallelism of other software is not modelled")
    model = model_of(row)
    cluster = cluster_of_row(row)
    layout = layout_of_row(row, model, cluster)
    columns = _columns(row, model, cluster, layout)
    values = {name: value.item() for name, value in columns.arrays().items()}
    cap = number(row, "cap_gib")
    if cap is not None:
        # The cap limits only the allocator; the context and communicators are outside it.
        values["capacity_gib"] = min(values["capacity_gib"], cap + outside_gib(values))
    stated = {**row, "global_batch": f"{values['global_batch']:g}"}
    run = PublishedRun(
        row=row,
        cell=tuple(stated.get(name, "") for name in CELL),
        model=model,
        cluster=cluster,
        precision=precision_of(row)[0],
        layout=layout,
        values=values,
        step_time_s=None,
        peak_memory_gib=None,
        peak_kind="allocated" if row.get("engine") else fact(software_of(row), "memory_printed", "device"),
        out_of_memory=row["status"] in ("oom", "crash_or_oom"),
    )
    return _with_figures(run, row, measured=measured)


def _with_figures(run: PublishedRun, row: Row, *, measured: bool) -> PublishedRun:
    """Returns the run with the measured figures of `row`.

    Raises:
        ValueError: `measured` is set, and the row has no figure.
    """
    untimed = run.out_of_memory or row.get("outcome", "ok") not in ("", *TIMED)
    step_time_s = None if untimed else _step_time_s(row, run.values, run.model)
    peak = number(row, "peak_mem_gb")
    if peak is not None and row.get("engine"):
        peak *= 1e9 / 2**30
    if measured and step_time_s is None and peak is None and not run.out_of_memory:
        raise ValueError("neither time, memory nor OOM printed")
    return dataclasses.replace(run, row=row, step_time_s=step_time_s, peak_memory_gib=peak)


class RowReader:
    """Interprets the rows of tables; caches rows that differ only in their figures."""

    def __init__(self) -> None:
        self._read: dict[tuple[tuple[str, str], ...], PublishedRun | str] = {}

    def run_of(self, row: Row, *, measured: bool = True) -> PublishedRun:
        """Returns the run of a row; see `interpret`.

        Raises:
            ValueError: a value is missing, unknown or contradictory; the message names it.
        """
        key = tuple((name, cell) for name, cell in row.items() if cell and name not in FIGURES)
        if key not in self._read:
            try:
                self._read[key] = interpret(row, measured=False)
            except ValueError as error:
                self._read[key] = str(error)
        run = self._read[key]
        if isinstance(run, str):
            raise ValueError(run)
        return _with_figures(run, row, measured=measured)


def axes_of(run: PublishedRun) -> dict[str, str | int]:
    """Returns the values of one run by axis, with the same axes for all runs."""
    return {
        **{name: str(run.layout[name]) for name in AXES["words"]},
        **{name: int(run.layout[name]) for name in AXES["numbers"]},
        **{name: int(run.values[name]) for name in AXES["values"]},
        "precision": run.precision,
        **{name: run.row.get(name, "") for name in AXES["texts"]},
    }
