"""Axes on which the best point has the last value that was listed."""

from platform.cost_model.listed_ends import listed_ends
from tests.samples import RECIPE, layout
from trainers.spec.layout import Layout
from trainers.spec.support import standing_refusal


def _ends(best: Layout, micro_batch: int, *others: Layout, rungs: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    ends = listed_ends(
        RECIPE,
        best,
        micro_batch,
        listed=dict.fromkeys((best, *others), rungs),
        refuses=lambda other: standing_refusal(RECIPE, other, 4),
    )
    assert all(end.option == f"--set {end.axis}={end.value},{end.beyond}" for end in ends)
    return {end.axis: (end.value, end.beyond) for end in ends}


def test_the_value_beyond_an_end_is_named_where_it_can_run() -> None:
    prefetched = layout(prefetch=2)
    assert _ends(prefetched, 2, layout(), rungs=(1, 2)) == {"prefetch": (2, 4), "micro_batch": (2, 4)}
    assert _ends(layout(), 4, prefetched, rungs=(4, 8)) == {"micro_batch": (4, 2)}
    assert _ends(prefetched, 2, layout(prefetch=4), rungs=(1, 2, 4)) == {"prefetch": (2, 1)}


def test_what_was_fixed_or_cannot_go_on_has_no_end() -> None:
    assert _ends(layout(prefetch=2), 2, rungs=(2,)) == {}
    whole_batch = RECIPE.global_batch // 4
    assert _ends(layout(), whole_batch, rungs=(1, whole_batch)) == {}, "the batch ended the ladder"
    split = layout(dp_shard=1, tp=4)
    assert _ends(split, 1, layout(dp_shard=2, tp=2), layout(), rungs=(1,)) == {}, "four devices have no tp 8"


def test_degrees_go_on_with_fewer_data_parallel_ranks() -> None:
    split = layout(dp_shard=2, pp=2)
    assert _ends(split, 1, layout(), rungs=(1,))["pp"] == (2, 4)
