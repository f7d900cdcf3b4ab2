"""Changes of a space by `--set axis=value,value`, and the messages where a change is impossible."""

import dataclasses

import pytest

import search_spaces
from search_spaces import changes
from trainers.spec.layout import Layout


def test_k_stands_for_1024_in_whole_numbers() -> None:
    (change,) = changes.parse(["seq_len=2k,512,8K"])
    assert change.values == (2048, 512, 8192)


def test_layout_axes_and_ladder_are_replaced() -> None:
    space = search_spaces.load("bloom7b").with_changes(["engine=deepspeed", "zero_stage=2, 1", "micro_batch=4,2"])
    candidates, _ = space.candidates(4)
    assert {candidate.layout.engine for candidate in candidates} == {"deepspeed"}
    assert [candidate.layout.zero_stage for candidate in candidates[:2]] == [2, 1]
    assert {candidate.micro_batches for candidate in candidates} == {(2, 4)}


@pytest.mark.parametrize("axis", [field.name for field in dataclasses.fields(Layout) if field.name != "flags"])
def test_each_kind_that_a_space_names_is_an_axis_of_its_model_s(axis: str) -> None:
    points, _ = search_spaces.load("bloom7b_kinds").candidates(4)
    values = {getattr(point.layout, axis) for point in points}
    candidates, _ = search_spaces.load("bloom7b").with_changes([f"{axis}={','.join(map(str, values))}"]).candidates(4)
    assert {getattr(candidate.layout, axis) for candidate in candidates} >= values


@pytest.mark.parametrize("num_devices", [2, 4])
def test_no_named_point_is_lost_in_silence(num_devices: int) -> None:
    """Checks that two points which are one layout on so few devices share a trial, and that one which cannot run there
    is refused by a sentence.
    """
    space = search_spaces.load("bloom7b_kinds")
    candidates, rejected = space.candidates(num_devices)
    names = [name for combination in (*candidates, *rejected) for name in combination.name.split(", ")]
    assert sorted(names) == sorted(point.name for point in space.points)


def test_a_recipe_field_makes_another_recipe() -> None:
    space = search_spaces.load("bloom7b")
    shorter = space.with_changes(["seq_len=1024", "optimizer=adafactor", "learning_rate=3e-4"])
    assert (shorter.recipe.seq_len, shorter.recipe.optimizer, shorter.recipe.learning_rate) == (1024, "adafactor", 3e-4)
    assert shorter.recipe.id != space.recipe.id
    assert shorter.further_recipes == ()
    assert shorter.miniature is space.miniature


def test_several_values_make_several_recipes_the_first_the_reference() -> None:
    space = search_spaces.load("bloom7b").with_changes(["seq_len=1024,2048", "state_precision=fp32,bf16"])
    assert [(recipe.seq_len, recipe.state_precision) for recipe in space.recipes] == [
        (1024, "fp32"),
        (2048, "fp32"),
        (1024, "bf16"),
        (2048, "bf16"),
    ]
    candidates, _ = space.candidates(1)
    assert {candidate.recipe.id for candidate in candidates} == {recipe.id for recipe in space.recipes}
    assert candidates[0].recipe == space.recipe


def test_a_value_given_twice_counts_once() -> None:
    assert search_spaces.load("gpt2").with_changes(["zero_stage=1,1"]).axes["zero_stage"] == (1,)


def test_points_are_picked_by_name_and_share_recipe_changes() -> None:
    names = ["zs3_fp16_gpus1_bs32_sl128", "zs0_fp32_gpus1_bs32_sl128"]
    space = search_spaces.load("gpt2_zero").with_changes([f"point={','.join(names)}", "seq_len=256"])
    candidates, _ = space.candidates(1)
    assert sorted(candidate.name for candidate in candidates) == sorted(names)
    assert {candidate.recipe.seq_len for candidate in candidates} == {256}


def test_a_fixed_accumulation_makes_a_recipe_each_and_the_global_batch_follows() -> None:
    space = search_spaces.load("bloom7b").with_changes(["grad_accum=1,16", "micro_batch=2,3", "tp=1", "pp=1"])
    assert [(recipe.grad_accum, recipe.global_batch) for recipe in space.recipes] == [(1, 0), (16, 0)]
    assert len({recipe.id for recipe in space.recipes}) == 2
    candidates, rejected = space.candidates(4)
    assert not rejected and {candidate.recipe for candidate in candidates} == set(space.recipes)
    points = candidates[-1].batch_points()
    assert [(point.micro_batch, point.grad_accum, point.global_batch(candidates[-1].layout)) for point in points] == [
        (2, 16, 128), (3, 16, 192)]  # fmt: skip


def test_a_recipe_without_a_fixed_accumulation_keeps_its_identity() -> None:
    assert search_spaces.load("bloom7b").recipe.id == "9c1833b83c7a"
    fixed = search_spaces.load("bloom7b").with_changes(["grad_accum=4"])
    assert fixed.with_changes(["global_batch=512"]).recipe == search_spaces.load("bloom7b").recipe


@pytest.mark.parametrize(
    ("name", "texts", "sentence"),
    [
        ("bloom7b", ["zero_stage"], "needs axis=value,value, got 'zero_stage'"),
        ("bloom7b", ["zero_stag=1"], "unknown axis 'zero_stag' in --set; did you mean zero_stage?"),
        ("bloom7b", ["engine=fsdb"], r"engine has no value 'fsdb'; did you mean fsdp\? \(engine takes ddp, fsdp"),
        ("bloom7b", ["lr=1e-3"], "unknown axis 'lr' in --set; did you mean learning_rate"),
        ("bloom7b", ["batch_size=8"], "unknown axis 'batch_size' in --set; did you mean global_batch"),
        ("bloom7b", ["seq_len=2kk"], "seq_len takes whole numbers, got '2kk'"),
        ("bloom7b", ["zero_stage=two"], "zero_stage takes whole numbers, got 'two'"),
        ("bloom7b", ["global_batch=1.5"], "global_batch takes whole numbers, got '1.5'"),
        ("bloom7b", ["seq_len="], "seq_len takes whole numbers, got ''"),
        ("bloom7b", ["data="], "data takes names, got ''"),
        ("bloom7b", ["learning_rate=nan"], "learning_rate takes numbers, got 'nan'"),
        ("bloom7b", ["model=x"], "unknown axis 'model'"),
        ("bloom7b", ["tp=1", "tp=2"], "--set tp is given twice"),
        ("bloom7b", ["seq_len=-1"], "seq_len must be at least 1, got -1"),
        ("gpt2", ["seq_len=2048"], "2048 is longer than the 1024 positions of gpt2"),
        ("bloom7b", ["grad_accum=0"], "grad_accum must be at least 1, got 0"),
        ("bloom7b", ["grad_accum=2,-1"], "grad_accum must be at least 1, got -1"),
        ("bloom7b", ["grad_accum=2", "global_batch=8"], "grad_accum and global_batch contradict"),
        ("bloom7b", ["micro_batch=0"], r"micro-batches of at least 1, got \[0\]"),
        ("bloom7b", ["micro_batch=2,3"], "micro_batch=3 gives no layout on any cluster: global batch 512"),
        ("bloom7b", ["global_batch=512,9", "micro_batch=2"], "global_batch=9 gives no layout on any cluster"),
        ("bloom7b", ["zero_stage=5"], "zero_stage=5 gives no layout on any cluster: zero_stage of fsdp must be one"),
        ("bloom7b", ["engine=fsdp", "zero_stage=1"], "engine=fsdp gives no layout on any cluster"),
        ("qwen3_30b_a3b", ["engine=ddp"], "cluster: zero_stage of ddp must be one of 0, got 3$"),
        ("bloom7b", ["tp=5"], "tp 5 does not divide the 32 heads of bloom-7b1"),
        ("qwen3_30b_a3b", ["ep=3"], "any cluster: ep 3 does not divide the 128 experts of a block of [^;]*$"),
        ("bloom7b", ["engine=ddp,fsdp", "pp=33"], "cuts bloom-7b1 into 33 stages, more than its 30 blocks with"),
        ("bloom7b", ["cp=3"], "cp 3 cuts a sequence into 6 parts, which do not divide its 2048 tokens"),
        ("bloom7b", ["dp_shard=0"], "dp_shard must be at least 1, got 0"),
        ("bloom7b", ["point=zs0"], r"has no point 'zs0' \(it has no named points\)"),
        ("gpt2_zero", ["point=zs0_fp16_gpus1_bs32_sl12"], "did you mean zs0_fp16_gpus1_bs32_sl128"),
        ("gpt2_zero", ["zero_stage=1"], "zero_stage is fixed by the named points of space gpt2_zero"),
        ("gpt2_zero", ["micro_batch=8"], "micro_batch is fixed by the named points"),
        ("gpt2_zero", ["attention=sdpa,eager"], "attention is one value in space gpt2_zero"),
    ],
)
def test_what_cannot_be_is_one_sentence(name: str, texts: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as raised:
        search_spaces.load(name).with_changes(texts)
    assert "\n" not in str(raised.value)
