"""Ladders go on until the batch ends them, unless a space or `--set` lists them."""

import dataclasses
import itertools

import pytest

import search_spaces
from search_spaces.ladder import doubled
from search_spaces.space import Space
from trainers.spec.layout import Layout


def _rungs(space: Space, num_devices: int) -> set[tuple[int, ...]]:
    return {
        candidate.micro_batches
        for candidate in space.candidates(num_devices)[0]
        if candidate.layout.model_parallel == 1
    }


@pytest.mark.parametrize("num_ranks", [1, 3, 8])
@pytest.mark.parametrize("rank_batch", [1, 2, 7, 22, 60, 64, 97, 4096])
def test_a_ladder_ends_at_a_ranks_whole_batch_and_each_rung_at_least_doubles(rank_batch: int, num_ranks: int) -> None:
    recipe = dataclasses.replace(search_spaces.load("gpt2").recipe, global_batch=rank_batch * num_ranks)
    rungs = doubled((1,), recipe, Layout(engine="ddp", dp_replicate=num_ranks))
    assert rungs[0] == 1 and rungs[-1] == rank_batch and all(rank_batch % rung == 0 for rung in rungs)
    for smaller, larger in itertools.pairwise(rungs):
        assert larger >= 2 * smaller
        assert not any(rank_batch % between == 0 for between in range(2 * smaller, larger))


def test_a_batch_that_ranks_do_not_share_and_a_fixed_accumulation() -> None:
    recipe = search_spaces.load("gpt2").recipe
    assert doubled((1, 4), recipe, Layout(engine="ddp", dp_replicate=3)) == (1, 4)
    fixed = dataclasses.replace(recipe, global_batch=0, grad_accum=4)
    assert doubled((1,), fixed, Layout(engine="ddp", dp_replicate=3)) == tuple(2**power for power in range(11))


def test_spaces_go_on_doubling_where_nothing_lists_their_ladders() -> None:
    space = search_spaces.load("gpt2")
    assert _rungs(space, 8) == {(1, 2, 4, 8, 16, 32, 64)}
    assert _rungs(space.with_changes(["global_batch=528"]), 24) == {(1, 2, 11, 22)}
    assert _rungs(space.with_changes(["micro_batch=4,16"]), 8) == {(4, 16)}
    assert space.miniature is not None and _rungs(space.miniature, 2) == {(4, 8)}
