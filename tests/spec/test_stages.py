"""The places where a pipeline cuts a model, and the layouts refused before anything starts."""

from typing import Any

import pytest

from trainers.spec.batch import BatchPoint, divides
from trainers.spec.layout import Layout
from trainers.spec.mesh_rules import pipeline_refusals
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.stages import schedule_refusal, stages_of, stages_of_rank
from trainers.spec.support import standing_refusal

LLAMA_405B = ModelSpec(
    name="llama3-405b",
    architecture="llama",
    num_layers=126,
    hidden_size=16384,
    num_heads=128,
    num_kv_heads=8,
    ffn_size=53248,
    vocab_size=128256,
)
BLOOM_560M = ModelSpec(
    name="bloom-560m", architecture="bloom", num_layers=24, hidden_size=1024, num_heads=16, vocab_size=250880
)
TINY = ModelSpec(name="tiny", architecture="llama", num_layers=4, hidden_size=64, num_heads=4, vocab_size=96)


def recipe(spec: ModelSpec, seq_len: int = 2048, **fields: Any) -> Recipe:
    return Recipe(model=spec, seq_len=seq_len, global_batch=16, seed=0, **fields)


def layout(pp: int, virtual: int = 1, **fields: Any) -> Layout:
    schedule = "interleaved" if virtual > 1 else "1f1b"
    chosen: dict[str, Any] = {"engine": "ddp", "pp": pp, "virtual": virtual, "schedule": schedule, **fields}
    return Layout(**chosen)


def counts(spec: ModelSpec, pp: int, virtual: int = 1, seq_len: int = 2048) -> list[int]:
    return [len(stage.blocks) for stage in stages_of(recipe(spec, seq_len), layout(pp, virtual))]


def test_llama_405b_is_cut_as_its_authors_cut_it() -> None:
    """Checks that the first and the last of 16 stages have a block less (arXiv 2407.21783, section 3.3.2)."""
    assert counts(LLAMA_405B, 16, seq_len=8192) == [7, *[8] * 14, 7]
    assert counts(LLAMA_405B, 16, 8, seq_len=8192) == [0, *[1] * 126, 0]


def test_a_head_that_costs_more_than_a_block_takes_the_place_of_blocks() -> None:
    first, *middle, last = counts(BLOOM_560M, 4)
    assert last < min(first, *middle)
    assert sum((first, *middle, last)) == 24


@pytest.mark.parametrize(("pp", "virtual"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_every_block_is_in_one_stage_in_order(pp: int, virtual: int) -> None:
    stages = stages_of(recipe(TINY), layout(pp, virtual))
    assert [block for stage in stages for block in stage.blocks] == list(range(4))
    assert [stage.has_embeddings for stage in stages] == [True] + [False] * (pp * virtual - 1)
    assert [stage.has_head for stage in stages] == [False] * (pp * virtual - 1) + [True]
    by_rank = [stages_of_rank(recipe(TINY), layout(pp, virtual), rank) for rank in range(pp)]
    assert [[stage.index for stage in rank_stages] for rank_stages in by_rank] == [
        list(range(r, pp * virtual, pp)) for r in range(pp)
    ]


def test_more_stages_than_blocks_with_embedding_and_head_are_refused_with_the_numbers() -> None:
    (reason,) = pipeline_refusals(recipe(TINY), layout(7))
    assert "pp 7 x virtual 1 cuts tiny into 7 stages, more than its 4 blocks with embedding and head, 6 at" in reason
    assert standing_refusal(recipe(TINY), layout(7), 7) == reason
    for pp in (1, 2, 3, 5, 6):  # evenly or not
        assert list(pipeline_refusals(recipe(TINY), layout(pp))) == []
        assert sum(len(stage.blocks) for stage in stages_of(recipe(TINY), layout(pp))) == TINY.num_layers
    assert list(pipeline_refusals(recipe(LLAMA_405B), layout(16, 8))) == []


@pytest.mark.parametrize(
    ("fields", "compression", "reason"),
    [
        ({"grad_sync": "every"}, "none", "reduces gradients once"),
        ({}, "powersgd_4", "two stages of a pipeline"),
        ({"compile": "model"}, "none", "compile model with pp 2"),
    ],
)
def test_what_no_pipeline_can_do_is_refused(fields: dict[str, Any], compression: str, reason: str) -> None:
    requested = layout(2, **{"dp_replicate": 2, **fields})
    assert any(
        reason in pipeline_refusal
        for pipeline_refusal in pipeline_refusals(recipe(TINY, compression=compression), requested)
    )


def test_too_few_micro_batches_are_refused_with_the_numbers() -> None:
    assert "a pipeline of 4 stages needs as many micro-batches a step at least, got 2" in schedule_refusal(layout(4), 2)
    assert "in rounds of pp 2, got 3 a step" in schedule_refusal(layout(2, 2), 3)
    assert schedule_refusal(layout(2), 3) == schedule_refusal(layout(2, 2), 4) == ""
    with pytest.raises(ValueError, match=r"a pipeline of 4 stages needs .* got 2"):
        BatchPoint.of(recipe(TINY), layout(4), 8)
    assert [micro_batch for micro_batch in (1, 2, 4, 8, 16) if divides(recipe(TINY), layout(4), micro_batch)] == [
        1,
        2,
        4,
    ]
