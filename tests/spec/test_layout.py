"""Layouts: combinations that no engine can mean, and identities that last."""

import dataclasses
from typing import Any

import pytest

from tests.samples import RECIPE
from trainers.spec.axis import axes_of
from trainers.spec.engines import mismatches
from trainers.spec.layout import Layout

FSDP = Layout(engine="fsdp", zero_stage=3, dp_shard=4)
ZERO_2 = Layout(engine="deepspeed", zero_stage=2, dp_shard=4, grad_sync="every")


@pytest.mark.parametrize(
    ("layout", "changes", "sentence"),
    [
        (FSDP, {"reshard": 1}, "reshard is a number of ranks, 2 or more, got 1"),
        (FSDP, {"reshard": -1}, "reshard must not be negative, got -1"),
        (FSDP, {"zero_stage": 2, "reshard": 2}, "reshard is an axis of fsdp at stage 3, got reshard 2 with fsdp at"),
        (ZERO_2, {"reshard": 2}, "reshard is an axis of fsdp at stage 3"),
        (ZERO_2, {"prefetch": 1}, "of deepspeed at stage 3, got prefetch 1 with deepspeed at stage 2"),
        (FSDP, {"overlap": "on"}, "overlap is an axis of deepspeed at stages 1 to 3, got overlap on with fsdp"),
        (ZERO_2, {"overlap": "yes"}, "overlap must be one of default, on, off, got 'yes'"),
        (
            FSDP,
            {"pp": 2, "virtual": 2},
            "interleaved goes with virtual 2 or more .* got schedule 1f1b and virtual 2",
        ),
        (FSDP, {"pp": 2, "schedule": "interleaved"}, "got schedule interleaved and virtual 1"),
        (FSDP, {"schedule": "interleaved", "virtual": 2}, "schedule interleaved needs a pipeline, got pp 1"),
        (ZERO_2, {"pp": 2, "schedule": "interleaved", "virtual": 2}, "schedule is an axis of ddp and of fsdp, got"),
        (FSDP, {"checkpointing": "budget_60"}, "checkpointing must be one of .*budget_75"),
    ],
)
def test_what_no_engine_can_mean_is_told(layout: Layout, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(layout, **changes)


def test_a_later_field_changes_no_identity_but_its_own() -> None:
    """Checks the hash of a layout that was measured before there were `overlap` and `reshard`."""
    assert Layout(engine="fsdp", zero_stage=3, dp_shard=2).id == "7f70676a251c"
    ids = {FSDP.id, dataclasses.replace(FSDP, reshard=2).id, dataclasses.replace(FSDP, dp_shard=2).id}
    ids |= {ZERO_2.id, dataclasses.replace(ZERO_2, overlap="on").id, dataclasses.replace(ZERO_2, overlap="off").id}
    assert len(ids) == 6


def test_ranks_of_one_data_parallel_coordinate_see_the_same_sequences() -> None:
    """Checks that neighbours share a tensor-parallel group first and that pipeline stages are the outermost axis."""
    layout = Layout(engine="fsdp", zero_stage=3, dp_replicate=2, dp_shard=2, tp=2)
    assert [layout.data_parallel_rank(rank) for rank in range(layout.world_size)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [FSDP.data_parallel_rank(rank) for rank in range(4)] == [0, 1, 2, 3]
    stages = dataclasses.replace(layout, dp_replicate=1, pp=2)
    assert [stages.data_parallel_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert stages.coordinates(5) == {"pp": 1, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "tp": 1}


def test_every_axis_is_declared_and_shown_in_a_column() -> None:
    assert list(axes_of(Layout)) == [field.name for field in dataclasses.fields(Layout)]
    assert [name for name, declared in axes_of(Layout).items() if not declared.column] == []


def test_an_axis_off_its_default_changes_the_label_or_the_words_of_its_engine() -> None:
    """Checks that each axis shows, since nothing else would distinguish two rows of a table that differ in it."""
    changed: dict[str, Any] = {
        "zero_stage": 2,
        "tp": 2,
        "pp": 2,
        "cp": 2,
        "cp_exchange": "all_to_all",
        "ep": 2,
        "virtual": 2,
        "grad_sync": "every",
        "checkpointing": "every_2",
        "offload": "all",
        "bucket_mib": 25,
        "prefetch": 1,
        "reshard": 2,
        "after_backward": "keep",
        "attention": "sdpa",
        "mlp": "quack",
        "experts": "grouped",
        "loss": "chunked",
        "compile": "block",
    }
    also: dict[str, dict[str, Any]] = {"virtual": {"schedule": "interleaved", "pp": 2}, "cp_exchange": {"cp": 2}}
    labels = {dataclasses.replace(FSDP, **{name: value}, **also.get(name, {})).label for name, value in changed.items()}
    assert len(labels | {FSDP.label}) == len(changed) + 1
    # The label's beginning, another engine's axis, one that goes with `virtual`, and those of a command.
    other = {"engine", "dp_replicate", "dp_shard", "overlap", "schedule", "cuda_graphs", "fp8_weights", "flags"}
    assert {*changed, *other} == set(axes_of(Layout))
    assert Layout(engine="ddp", fp8_weights="kept").label.endswith("FP8 weights kept")
    assert dataclasses.replace(FSDP, checkpointing="budget_50").label.count("50% of activations kept") == 1
    assert dataclasses.replace(FSDP, dp_replicate=2).label == ("FSDP2 stage 3, replicate 2 x shard 4, sync last, eager")


def test_a_degree_that_an_engine_reads_back_otherwise_is_a_mismatch() -> None:
    """Checks a mesh in which neighbouring ranks share a tensor-parallel group, though the layout asked for none."""
    recipe = RECIPE
    in_effect = {
        **{name: getattr(FSDP, name) for name in axes_of(Layout)},
        "world_size": 4,
        "grad_accum": 2,
        "product_sums": "fp32",
        "fused": True,
        **{name: getattr(recipe, name) for name in _OF_RECIPE},
    }
    assert mismatches(in_effect, recipe, FSDP, grad_accum=2) == []
    (sentence,) = mismatches({**in_effect, "tp": 2}, recipe, FSDP, grad_accum=2)
    assert sentence == "tp in effect is 2, the layout or recipe asks for 1"
    del in_effect["tp"]
    assert mismatches(in_effect, recipe, FSDP, grad_accum=2) == []
    assert mismatches(in_effect, recipe, dataclasses.replace(FSDP, dp_shard=2, tp=2), grad_accum=2) == [
        "the engine does not report its tp, 2 was requested",
        "dp_shard in effect is 4, the layout or recipe asks for 2",
    ]


_OF_RECIPE = (
    "compute_precision", "state_precision", "optimizer", "learning_rate", "weight_decay", "beta1", "beta2", "epsilon",
)  # fmt: skip


@pytest.mark.parametrize(
    ("offload", "on_host"), [("none", False), ("moments", False), ("optimizer", True), ("all", True)]
)
def test_moments_alone_on_the_host_leave_the_step_to_the_device(offload: Any, on_host: bool) -> None:
    assert Layout(engine="fsdp", zero_stage=3, offload=offload).steps_on_host is on_host
