"""A global batch that nothing states is one that the devices share; a stated one is never changed."""

import contextlib
import itertools
import json
import math
from pathlib import Path

import pytest

import search_spaces
from search_spaces import reference
from search_spaces.candidate import ladder_of
from search_spaces.degrees import fill
from search_spaces.shared_batch import MOST_TOKENS, shared_batch
from search_spaces.space import Space
from trainers.spec.recipe import Recipe

MICRO_BATCHES = (1, 2, 4, 8, 16)


def test_devices_share_it_unless_a_step_would_have_too_many_tokens() -> None:
    for count, seq_len in itertools.product((*range(1, 130), 384, 511, 1000, 3072, 4096), (512, 2048, 131_072)):
        batch = shared_batch(512, (count,), MICRO_BATCHES, seq_len)
        assert batch >= 1 and batch * seq_len <= MOST_TOKENS
        assert batch % count == 0 or count * seq_len > MOST_TOKENS, (count, seq_len, batch)


@pytest.mark.parametrize(
    ("counts", "batch"),
    [
        ((8,), 512),
        ((512,), 512),
        ((3,), 528),
        ((24,), 384),
        ((5,), 480),
        ((7,), 560),
        ((12,), 576),
        ((3, 5, 6, 7, 12), 1680),
    ],
)
def test_it_is_the_nearest_multiple_of_devices_and_micro_batches(counts: tuple[int, ...], batch: int) -> None:
    assert shared_batch(512, counts, MICRO_BATCHES, 2048) == batch
    assert batch % math.lcm(*counts) == 0


@pytest.mark.parametrize("name", (*search_spaces.names(), *reference.names(), "config.json"))
def test_an_assumed_batch_leaves_no_number_of_devices_without_a_layout(name: str, tmp_path: Path) -> None:
    if name == "config.json":
        sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512}
        (tmp_path / name).write_text(json.dumps({"model_type": "llama", "intermediate_size": 128, **sizes}))
    loaded = search_spaces.load(str(tmp_path) if name == "config.json" else name)
    if loaded.points:
        return  # its points state their batches
    for count in range(1, 65):
        space = loaded.with_shared_batch((count,))
        assert any(_runs(space, count, recipe) for recipe in space.recipes), count
    together = loaded.with_shared_batch((3, 5, 6, 7, 12))
    assert all(_runs(together, count, together.recipe) for count in (3, 5, 6, 7, 12))


def _runs(space: Space, count: int, recipe: Recipe) -> bool:
    """Returns whether some layout of `recipe` divides its batch among all `count` devices as replicas or shards."""
    for of, values, micro_batches, _ in space.combinations(count):
        if of != recipe or any(values.get(axis, 1) > 1 for axis in ("tp", "pp", "cp")):
            continue
        with contextlib.suppress(ValueError):
            layout = fill(values, count)
            if ladder_of(recipe, layout, space.ladder(micro_batches, recipe, layout), count)[0]:
                return True
    return False


def test_a_stated_batch_is_kept(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "intermediate_size": 128, **sizes}))
    assumed = search_spaces.load(str(tmp_path))
    stated = assumed.with_changes(["global_batch=512"])
    assert assumed.with_shared_batch((3,)).recipe.global_batch == 528
    assert stated.with_shared_batch((3,)) == stated
    assert stated.with_shared_batch((3,), stated=True).recipe.global_batch == 528
    candidates, _ = assumed.with_shared_batch((3,)).candidates(3)
    assert {1, 3} <= {candidate.layout.data_parallel for candidate in candidates}


def test_a_miniature_s_batch_is_shared_by_any_number_of_workers() -> None:
    miniature = search_spaces.load("bloom7b").miniature
    assert miniature is not None and miniature.assumption == ""
    for workers in (2, 3, 5, 7):
        space = miniature.on_workers(workers).with_shared_batch((workers,))
        assert {candidate.layout.data_parallel for candidate in space.candidates(workers)[0]} & {workers}
    assert miniature.with_shared_batch((2,)) == miniature
