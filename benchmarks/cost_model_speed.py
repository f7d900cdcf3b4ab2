"""Seconds to make the features of a million layout x batch points and to predict them. Run from the checkout:

python -m benchmarks.cost_model_speed
"""

import argparse
import dataclasses
import math
import os
import time

import numpy as np

from platform.cost_model.columns import Columns
from platform.cost_model.features import TrainingWork, features
from platform.cost_model.hardware import ClusterSpec, find_cluster
from platform.cost_model.layout_arrays import LayoutArrays, Words, words
from platform.cost_model.predict import predict
from trainers.spec.axis import defaults_of
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

GPT_175B = ModelSpec(
    name="gpt-175b", architecture="gpt2", num_layers=96, hidden_size=12288, num_heads=96, vocab_size=51200,
    max_positions=2048,
)  # fmt: skip
ENGINE_STAGES = (
    ("ddp", 0, "last"), ("fsdp", 3, "every"), ("fsdp", 3, "last"), ("fsdp", 2, "every"),
    ("deepspeed", 0, "last"), ("deepspeed", 1, "last"), ("deepspeed", 2, "every"), ("deepspeed", 3, "every"),
)  # fmt: skip
"""(engine, zero_stage, grad_sync)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """The values of each axis of the benchmark's grid."""

    tp: tuple[int, ...] = (1, 2, 4, 8)
    cp: tuple[int, ...] = (1,)
    virtual: tuple[int, ...] = (1,)
    checkpointing: tuple[str, ...] = ("none", "selective", "full")
    attention: tuple[str, ...] = ("eager", "sdpa")
    compile: tuple[str, ...] = ("none", "block")
    loss: tuple[str, ...] = ("plain", "chunked")
    micro_batches: tuple[int, ...] = tuple(2**power for power in range(8))

    @property
    def free(self) -> tuple[tuple[str, ...], ...]:
        """The axes that divide nothing."""
        return self.checkpointing, self.attention, self.compile, self.loss


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The features of a product of axes: fields of [rows] for what must divide something, and, before that axis, one
    axis for each free one, so that a formula is computed over the axes that it depends on alone.
    """

    columns: Columns
    layouts: LayoutArrays
    num_points: int
    """Number of points considered."""


def make_grid(recipe: Recipe, cluster: ClusterSpec, axes: Axes) -> Grid:
    """Returns every point of `axes` whose degrees divide devices, heads, blocks, sequence and global batch."""
    model, devices = recipe.model, cluster.num_devices
    pipelines = [
        degree
        for degree in range(1, min(model.num_layers, devices) + 1)
        if devices % degree == 0 and (model.num_layers % degree == 0 or (model.num_layers + 2) % degree == 0)
    ]
    bound = (range(len(ENGINE_STAGES)), axes.tp, pipelines, axes.cp, axes.virtual, axes.micro_batches)
    kind, tp, pp, cp, virtual, micro_batch = np.ix_(*(np.array(values) for values in bound))
    stages = np.array([stage for _, stage, _ in ENGINE_STAGES])
    syncs = np.array([sync == "every" and engine != "deepspeed" for engine, _, sync in ENGINE_STAGES])
    dp = devices // (tp * pp * cp)
    holds = (
        (devices % (tp * pp * cp) == 0)
        & (model.num_heads % tp == 0)
        & (tp <= cluster.devices_per_node)
        & ((cp == 1) | (recipe.seq_len % (2 * cp) == 0))
        & (recipe.global_batch % np.maximum(micro_batch * dp, 1) == 0)
        & ((pp == 1) | (stages[kind] <= 1))
        & ((dp > 1) | ~syncs[kind])
        & ((virtual == 1) | ((pp > 1) & (model.num_layers % (pp * virtual) == 0)))
    )
    index = np.nonzero(holds)
    of_rows = [np.array(values)[place].astype(np.float64) for values, place in zip(bound, index, strict=True)]
    _, tp, pp, cp, virtual, micro_batch = of_rows
    stage, dp = stages[index[0]].astype(np.float64), devices / (tp * pp * cp)

    def of_rows_words(place: int) -> Words:
        distinct = tuple(dict.fromkeys(str(engine_stage[place]) for engine_stage in ENGINE_STAGES))
        return words(
            distinct, np.array([distinct.index(str(engine_stage[place])) for engine_stage in ENGINE_STAGES])[index[0]]
        )

    def along(axis: int, values: tuple[str, ...]) -> Words:
        return words(values, np.arange(len(values)).reshape([-1 if dimension == axis else 1 for dimension in range(5)]))

    zero = np.zeros((), dtype=np.int64)
    shard = np.where(stage > 0, dp, 1.0)
    defaults = {
        name: words((value,), zero) if isinstance(value, str) else np.full((), float(value))
        for name, value in defaults_of(Layout).items()
    }
    layouts = LayoutArrays(
        {
            **defaults,
            "engine": of_rows_words(0),
            "grad_sync": of_rows_words(2),
            "zero_stage": stage,
            "dp_replicate": dp / shard,
            "dp_shard": shard,
            "tp": tp,
            "pp": pp,
            "cp": cp,
            "virtual": virtual,
            **{
                name: along(axis, values)
                for axis, (name, values) in enumerate(
                    zip(("checkpointing", "attention", "compile", "loss"), axes.free, strict=True)
                )
            },
        }
    )
    columns = features(
        TrainingWork.of(recipe),
        layouts,
        cluster,
        micro_batch=micro_batch,
        grad_accum=recipe.global_batch / (micro_batch * dp),
    )
    return Grid(columns=columns, layouts=layouts, num_points=holds.size * math.prod(map(len, axes.free)))


def main() -> None:
    """Prints the seconds of each part, three times."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    recipe = Recipe(model=GPT_175B, seq_len=2048, global_batch=2**9 * 3**5 * 5**3 * 7)
    axes = Axes(cp=(1, 2, 4, 8), virtual=(1, 2, 3, 4, 6, 8), micro_batches=tuple(range(1, 37)))
    cluster = find_cluster("384x8xH100")
    for _ in range(3):
        busy, start = time.process_time(), time.perf_counter()
        grid = make_grid(recipe, cluster, axes)
        built_s = time.perf_counter()
        prediction = predict(grid.columns)
        predicted_s = time.perf_counter()
        print(
            f"{grid.num_points:,} looked at, features of {prediction.sigma.size:,} made in {built_s - start:.2f} s,"
            f" predicted in {predicted_s - built_s:.2f} s, {predicted_s - start:.2f} s in all"
            f" ({time.process_time() - busy:.2f} s of processor time, load {os.getloadavg()[0]:.1f})"
        )


if __name__ == "__main__":
    main()
