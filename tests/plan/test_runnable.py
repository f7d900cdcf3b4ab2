"""Every row of a plan for this project's own trainers is one that a search may run."""

import pytest

import search_spaces
from platform.cost_model.hardware import find_cluster
from platform.plan.points import points_of
from search_spaces import reference
from search_spaces.degrees import reason_against
from search_spaces.space import Space
from trainers.spec.support import standing_refusal


def _space(name: str) -> Space:
    return reference.load(name) if name in reference.names() else search_spaces.load(name)


@pytest.mark.parametrize(
    ("name", "cluster", "changes"),
    [
        ("gpt_175b", "16xdgx-a100", ()),
        ("gpt_1_7b", "3x8xH100", ("global_batch=528",)),
        ("gpt2_xxl", "8xH100", ()),
        ("bloom7b", "2x8xH100", ("tp=16",)),
        ("bloom7b", "8xH100", ("tp=8", "engine=deepspeed,fsdp,ddp")),
        ("qwen3_8b", "3x8xH100", ("global_batch=384", "attention=sdpa")),
        ("tr3m_1b3", "2x4xV100", ()),
    ],
)
def test_rows_are_what_the_rules_of_a_search_let_run(name: str, cluster: str, changes: tuple[str, ...]) -> None:
    """Checks all rows, not only the first: those with degrees that an engine lacks are no rows."""
    space, spec = _space(name), find_cluster(cluster)
    space = space.with_changes(changes) if changes else space
    points = points_of(space, space.recipe, spec)
    assert points.layouts
    refused = {
        (layout.label, reason)
        for layout in set(points.layouts)
        if (reason := reason_against(space.recipe, layout, spec.num_devices))
        or (reason := standing_refusal(space.recipe, layout, spec.num_devices))
    }
    assert refused == set()
