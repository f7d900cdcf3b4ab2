"""Invented values for tests of records and reports. Nothing here was measured."""

import csv
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from platform.study.history import History
from platform.study.result.result import StudyResult
from trainers.records.journal import Line, Measured, Profile, StudyHeader
from trainers.records.measurement import Conditions, Measurement, Outcome
from trainers.records.sums import Sums
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

MODEL = ModelSpec(
    name="bloom-7b1", architecture="bloom", num_layers=30, hidden_size=4096, num_heads=32, vocab_size=250880
)
SMALL = ModelSpec(
    name="bloom-small",
    architecture="bloom",
    num_layers=2,
    hidden_size=64,
    num_heads=4,
    vocab_size=512,
    miniature_of="bloom-7b1",
)
RECIPE = Recipe(model=MODEL, seq_len=2048, global_batch=512)
CLUSTER = Cluster(device_kind="cuda", device="Made-up GPU", device_memory_gib=80.0, devices_per_node=4)
CONDITIONS = Conditions(
    device="Made-up GPU",
    device_memory_gib=80.0,
    num_nodes=1,
    versions={"python": "3.11", "torch": "0.0"},
    environment={"NCCL_DEBUG": "WARN"},
    commit="0123456",
)


def layout(**fields: Any) -> Layout:
    """Returns a layout on four devices, FSDP2 unless `fields` state another engine."""
    defaults: dict[str, Any] = {"engine": "fsdp", "zero_stage": 3, "dp_shard": 4}
    return Layout(**{**defaults, **fields})


def measurement(
    *,
    on: Layout | None = None,
    micro_batch: int = 1,
    recipe: Recipe = RECIPE,
    tokens_per_s: float | None = 40000.0,
    **fields: Any,
) -> Measurement:
    """Returns a measurement with all figures; one that did not run if `tokens_per_s` is None."""
    on = on or layout()
    batch = BatchPoint.of(recipe, on, micro_batch)
    figures: dict[str, Any] = {"outcome": Outcome.OK, "trial_id": "t1", "conditions": CONDITIONS}
    if tokens_per_s is not None:
        step_s = recipe.tokens_per_step / tokens_per_s
        tokens_per_s_per_gpu = tokens_per_s / on.world_size
        model_tflops = tokens_per_s_per_gpu * recipe.model.flops_per_token(recipe.seq_len) / 1e12
        figures |= {
            "measured_grad_accum": batch.grad_accum,
            "step_time_s": step_s,
            "step_time_low_s": step_s * 0.99,
            "step_time_high_s": step_s * 1.01,
            "windows_s": (step_s, step_s * 0.99, step_s * 1.01),
            "steps_per_window": 2,
            "tokens_per_s": tokens_per_s,
            "tokens_per_s_per_gpu": tokens_per_s_per_gpu,
            "model_tflops_per_gpu": model_tflops,
            "hardware_tflops_per_gpu": model_tflops,
            "matmul_peak_tflops": 700.0,
            "share_of_matmul_peak": model_tflops / 700.0,
            "datasheet_peak_tflops": 990.0,
            "share_of_datasheet_peak": model_tflops / 990.0,
            "peak_allocated_gib": 61.25,
            "peak_reserved_gib": 66.5,
            "utilization_pct": 97.5,
            "losses": (12.5, 11.0, 10.25),
            "grad_norms": (3.0, 2.5, 2.0),
            "step_times_s": (step_s * 2, step_s, step_s),
        }
    return Measurement(recipe=recipe, layout=on, batch=batch, **{**figures, **fields})


def oom(**fields: Any) -> Measurement:
    """Returns a measurement that ran out of memory."""
    defaults: dict[str, Any] = {
        "tokens_per_s": None,
        "outcome": Outcome.OOM,
        "reason": "the optimizer step asked for 4.00 GiB with 78.50 GiB allocated",
        "phase": "optimizer",
        "rank": 3,
        "asked_gib": 4.0,
        "allocated_gib": 78.5,
        "reserved_gib": 79.25,
    }
    return measurement(**{**defaults, **fields})


def skipped(**fields: Any) -> Measurement:
    """Returns the measurement of a layout that was never run."""
    defaults: dict[str, Any] = {
        "tokens_per_s": None,
        "outcome": Outcome.SKIPPED,
        "reason": "states alone need 105.3 GiB, the device has 80.0 GiB",
        "conditions": None,
        "trial_id": "",
    }
    return measurement(**{**defaults, **fields})


def profile(measured: Measurement | None = None, **fields: Any) -> Profile:
    """Returns a profile of `measurement()` or another one: of a step's 100 ms, 40 in products and 10 in each other
    part.
    """
    measured = measured or measurement()
    sums = Sums(
        matmul_s=0.040,
        **{f"{name}_s": 0.010 for name in ("attention", "loss", "optimizer", "other", "communication_exposed", "idle")},
        communication_hidden_s=0.020,
    )
    defaults: dict[str, Any] = {
        "trial_id": "t2",
        "device_kind": "cuda",
        "num_steps": 3,
        "measured_grad_accum": 3,
        "sums": sums,
        "trace": "trace-t2.json.gz",
        "trace_mib": 5.25,
    }
    return Profile(recipe=measured.recipe, layout=measured.layout, batch=measured.batch, **{**defaults, **fields})


def header(name: str = "made-up", **fields: Any) -> StudyHeader:
    """Returns the first line of a study of `RECIPE`."""
    defaults: dict[str, Any] = {
        "space": "bloom7b",
        "recipes": (RECIPE,),
        "cluster": CLUSTER,
        "tokens": 100e9,
        "searcher": "all",
    }
    return StudyHeader(name=name, **{**defaults, **fields})


def result_of(measurements: Iterable[Measurement], *lines: Line, **fields: Any) -> StudyResult:
    """Returns the result of a study with these measured recipes and additional journal lines."""
    measured = [Measured(at="2026-01-01T00:00:00+00:00", measurement=point) for point in measurements]
    recipes = tuple(dict.fromkeys(line.measurement.recipe for line in measured))
    defaults: dict[str, Any] = {"at": "2026-01-01T00:00:00+00:00", "recipes": recipes}
    first = header(**{**defaults, **fields})
    return StudyResult.of(History([first, *measured, *lines]))


def miniature() -> Recipe:
    """Returns `RECIPE` with the small substitute for its model."""
    return dataclasses.replace(RECIPE, model=SMALL, seq_len=32, global_batch=8, compute_precision="fp32")


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV table as text by the header's names."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
