"""Draws the laboratory notes' pictures that reports can draw, from committed tables: `python -m scripts.redrawn`.
Tables have no quartiles, so days have no band.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import search_spaces
from platform.report.days_picture import Days, draw_days
from platform.report.measurement_table import GB_PER_GIB
from platform.report.pictures import HEAT_MAP, draw
from platform.study.history import History
from platform.study.result.ranking import points, rank
from platform.study.result.result import RecipeResult
from platform.validate.facts import mlp_of
from scripts.pages.committed import read_table
from trainers.records.measurement import Measurement, Outcome, days_for_tokens
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

DOCS = Path(__file__).resolve().parent.parent / "docs"
DAYS: Mapping[str, tuple[str, Sequence[str], str]] = {
    "gpt2-scaling-H200": ("gpt2", ("gpt2-scaling-1xH200", "gpt2-scaling-2xH200"), "no numerics gate on 1, 2"),
    "bloom7b-scaling-H200": (
        "bloom7b",
        ("bloom7b-again-1xH200", "bloom7b-2xH200", "bloom7b-gated-4xH200"),
        "steps derived from fewer micro-steps on 1, 2, 4; no numerics gate on 1, 2",
    ),
}
"""Space, tables (fewest GPUs first) and note, by picture."""
HEAT = ("gpt2-exhaustive-1xH200", "gpt2")
"""Picture and table of layouts by micro-batch, and its space."""
STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for picture, (space, tables, note) in DAYS.items():
        loaded = search_spaces.load(space)
        title = f"{loaded.recipes[0].label}\n{loaded.tokens / 1e9:,.4g} billion tokens; measured"
        days = [days_of(rows(table), loaded.tokens) for table in tables]
        path = DOCS / "pictures" / f"{picture}.png"
        draw_days(days, path, title=title, line="fastest layout measured", band="", note=note)
        print(path)
    name, space = HEAT
    recipe = search_spaces.load(space).recipes[0]
    measured = rows(name)
    memory_gib = (measured[0].gpu_mem_gb or 0) / GB_PER_GIB
    cluster = Cluster(
        device_kind="cuda", device=measured[0].gpu or "", device_memory_gib=memory_gib, devices_per_node=1
    )
    with TemporaryDirectory() as folder:
        draw(_result(recipe, [_measurement(recipe, row) for row in measured]), cluster, Path(folder))
        path = DOCS / "pictures" / f"{name}.png"
        path.write_bytes((Path(folder) / f"{HEAT_MAP}.png").read_bytes())
    print(path)


def rows(table: str) -> list[SimpleNamespace]:
    return read_table(DOCS / "measurements" / f"{table}.csv")


def days_of(table_rows: Sequence[SimpleNamespace], tokens: float) -> Days:
    """Returns the days of a table's winner, by its last repeated run if it has one."""
    fastest = max((row for row in table_rows if row.outcome == "ok"), key=lambda row: row.tokens_per_s_per_gpu or 0)
    last = [row for row in table_rows if row.layout_id == fastest.layout_id and row.micro_batch == fastest.micro_batch][
        -1
    ]
    days = days_for_tokens(tokens, (last.tokens_per_s_per_gpu or 0) * (last.gpus or 1))
    return Days(num_devices=last.gpus or 1, days=days, low_days=days, high_days=days)


def _measurement(recipe: Recipe, row: SimpleNamespace) -> Measurement:
    """Returns a row as a measurement with the values that the pictures show.

    Raises:
        ValueError: the row's columns do not state the whole layout.
    """
    fields: dict[str, Any] = {
        "engine": row.engine,
        "zero_stage": STAGES[row.strategy or ""],
        "grad_sync": row.grad_sync,
        "checkpointing": row.activation_ckpt,
        "attention": row.attention,
        "mlp": mlp_of(row.notes or ""),
        "loss": row.loss,
        "compile": row.compile,
    }
    layout = Layout(**fields)
    if layout.id != row.layout_id:
        raise ValueError(f"a row states another layout than its columns: {row}")
    return Measurement(
        recipe=recipe,
        layout=layout,
        batch=BatchPoint.of(recipe, layout, row.micro_batch or 0),
        outcome=Outcome(row.outcome or ""),
        trial_id="t1",
        repeat=1 if "repeat" in (row.notes or "") else 0,
        step_time_s=row.iter_time_s,
        step_time_derived="iter_time_s" in (row.derived or ""),
        tokens_per_s=row.tokens_per_s_per_gpu,
        peak_allocated_gib=row.peak_mem_gb and row.peak_mem_gb / GB_PER_GIB,
    )


def _result(recipe: Recipe, measurements: Sequence[Measurement]) -> RecipeResult:
    """Returns the result of one recipe's measurements, assuming an undisturbed machine."""
    of_recipe = tuple(points(measurements))
    return RecipeResult(
        recipe=recipe,
        measurements=tuple(measurements),
        points=of_recipe,
        ranking=tuple(rank(of_recipe)),
        contenders=(),
        unresolved=(),
        history=History(),
    )


if __name__ == "__main__":
    main()
