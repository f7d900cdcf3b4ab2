"""Degrees are divisors of what they must divide: where any layout of their whole product runs, a plan has one."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

import search_spaces
from platform.common.errors import InputError
from platform.cost_model.features import from_points
from platform.cost_model.hardware import ClusterSpec, find_cluster
from platform.cost_model.predict import predict
from platform.plan.best_layouts import best_plan
from platform.plan.points import points_of
from search_spaces.degrees import divisors
from search_spaces.space import Space
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

# Heads of 2, 3, 5 and 7, blocks that few counts divide, vocabularies that no tp divides.
MODELS = (
    ModelSpec(name="odd heads", architecture="llama", num_layers=7, hidden_size=420, num_heads=105, vocab_size=2520),
    ModelSpec(name="prime", architecture="llama", num_layers=13, hidden_size=448, num_heads=7, vocab_size=50_257),
    ModelSpec(name="bloom", architecture="bloom", num_layers=70, hidden_size=14_336, num_heads=112, vocab_size=250_880),
    ModelSpec(name="wide", architecture="llama", num_layers=36, hidden_size=4096, num_heads=32, vocab_size=151_936),
)
KERNELS: dict[str, Any] = {"attention": "flex", "loss": "chunked", "compile": "block", "checkpointing": "full"}


def space_of(model: ModelSpec, seq_len: int, global_batch: int) -> Space:
    """Returns a space of one set of kernels, with the engines and degrees of a `config.json`'s."""
    return Space(
        name=model.name,
        summary="",
        recipe=Recipe(model=model, seq_len=seq_len, global_batch=global_batch),
        axes={
            **{axis: (value,) for axis, value in KERNELS.items()},
            "zero_stage": (3, 2, 0),
            "engine": ("fsdp", "ddp"),
        },
        model_parallel={"cp": (1, 2, 4), "tp": (1, 2, 4, 8), "pp": (1, 2, 4, 8)},
        micro_batches=(1, 2, 4, 8),
    )


def cluster_of(count: int) -> ClusterSpec:
    """Returns `count` H100, on nodes of eight where eight divides them."""
    return find_cluster(f"{count // 8}x8xH100" if count % 8 == 0 else f"{count}xH100")


def every_layout(recipe: Recipe, cluster: ClusterSpec) -> Iterator[tuple[Layout, BatchPoint]]:
    """Yields every layout of the product of divisors that the rules accept, at micro-batch 1."""
    count = cluster.num_devices
    for tp, cp in itertools.product(divisors(cluster.devices_per_node), divisors(count)):
        for pp in divisors(count // (tp * cp)) if count % (tp * cp) == 0 else ():
            replicas = count // (tp * cp * pp)
            sharded: dict[str, Any] = {"engine": "fsdp", "zero_stage": 3, "dp_shard": replicas}
            replicated: dict[str, Any] = {"engine": "ddp", "dp_replicate": replicas}
            for kind in (sharded, replicated):
                layout = Layout(**kind, **KERNELS, tp=tp, cp=cp, pp=pp, grad_sync="last")
                if standing_refusal(recipe, layout, count) is None:
                    try:
                        yield layout, BatchPoint.of(recipe, layout, 1)
                    except ValueError:
                        continue


def has_plan(space: Space, cluster: ClusterSpec) -> bool:
    """Returns whether the plan has a layout that fits."""
    try:
        return bool(best_plan(space, space.recipe, cluster, top=1).best)
    except InputError:
        return False


@pytest.mark.parametrize("seed", range(6))
def test_where_any_layout_runs_and_fits_the_plan_is_not_none(seed: int) -> None:
    """Checks random counts, models, lengths and batches; a plan of none is compared with the whole product."""
    chooses = random.Random(seed)
    for model in MODELS:
        count = chooses.choice((chooses.randint(1, 512), 8 * chooses.randint(1, 64)))
        batch = chooses.choice((chooses.randint(1, 64), count * chooses.randint(1, 4), 512))
        space = space_of(model, chooses.choice((1260, 2048, 9216)), batch)
        cluster = cluster_of(count)
        if has_plan(space, cluster):
            continue
        runs = list(every_layout(space.recipe, cluster))
        fits = runs and predict(from_points([(space.recipe, *point) for point in runs], cluster)).ok_probability > 0.5
        labels = [layout.degrees for layout, _ in itertools.compress(runs, fits)] if runs else []
        assert not labels, f"{count} devices, {model.name}, length {space.recipe.seq_len}, batch {batch}: {labels[:3]}"


@pytest.mark.parametrize(
    ("model", "count", "seq_len", "batch", "degrees"),
    [
        (2, 384, 2048, 2048, {"tp 4 pp 12", "tp 8 pp 12", "pp 24"}),  # BLOOM-176B's run; 70 blocks
        (3, 24, 2048, 512, {"pp 3", "pp 6", "pp 12"}),
        (3, 5, 2048, 512, {"pp 5"}),
        (1, 7, 2048, 512, {"pp 7"}),
        (0, 3, 1260, 64, {"tp 3", "cp 3", "pp 3"}),
        (0, 105, 1260, 2, {"tp 105"}),
    ],
)
def test_degrees_of_other_counts_are_offered(
    model: int, count: int, seq_len: int, batch: int, degrees: set[str]
) -> None:
    space = space_of(MODELS[model], seq_len, batch)
    points = points_of(space, space.recipe, cluster_of(count))
    offered = " ".join(layout.degrees for layout in points.layouts)
    assert {words for words in degrees if words not in offered} == set()


def test_a_search_offers_the_degrees_of_other_counts_too() -> None:
    space = search_spaces.load("qwen3_8b").with_changes(["global_batch=128"])
    (candidates, _), (powers, _) = space.candidates(3), space.candidates(8)
    assert {candidate.layout.pp for candidate in candidates} == {3}
    assert {candidate.layout.pp for candidate in powers} == {1, 2, 4, 8}


def test_micro_batches_are_divisors_where_no_named_one_divides() -> None:
    space = search_spaces.load("gpt2").with_changes(["global_batch=528"])  # its ladder begins at 4; 22 a device
    candidates, _ = space.candidates(24)
    assert {candidate.micro_batches for candidate in candidates} == {(1, 2, 11, 22)}
    with pytest.raises(ValueError, match="528 is not a multiple of micro_batch 4 x 24"):
        space.with_changes(["micro_batch=4"]).candidates(24)
