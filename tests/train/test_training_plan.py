"""Tests of the plan that options make, and of the options that are refused, each with one sentence, before any device
is touched.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import platform.train.__main__ as train  # pyright takes `from platform import` for the standard module
from platform.common.errors import InputError
from platform.study.study import Study
from platform.train.attempts import check_layouts
from platform.train.target import read_target
from platform.train.training_folder import TrainingFolder
from platform.train.training_plan import make_plan
from tests.samples import header, measurement
from tests.training.layout_file import write_layout
from tests.training.values import DDP, FSDP, RECIPE, STEP
from trainers.records.journal import Measured
from trainers.records.training import TrainingPlan
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.codec import to_json
from trainers.spec.layout import Layout

Make = Callable[..., TrainingPlan]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Returns a function that makes the plan of a command with the given arguments, for `layout.json` unless `target`
    is given.
    """
    write_layout(tmp_path / "layout.json")

    def make_plan_of(
        *argv: str,
        tokens: int = 100 * STEP,
        target: Path | None = None,
        before: TrainingPlan | None = None,
        tokens_done: int = 0,
    ) -> TrainingPlan:
        options = train.PARSER.read([str(target or tmp_path / "layout.json"), "--tokens", str(100 * STEP), *argv])
        return make_plan(options, read_target(options.target, options.studies, options.recipe), before, tokens_done)

    return make_plan_of


def test_a_layouts_file_is_trained_as_it_says(make: Make):
    plan = make()
    (phase,) = plan.phases
    assert (phase.layout, phase.batch, plan.recipe) == (DDP, BatchPoint(micro_batch=2, grad_accum=1), RECIPE)
    assert plan.lr_schedule.warmup_tokens == STEP and plan.lr_schedule.final_share == 0.1
    assert plan.validation.sequences > 0 and plan.validation.every_tokens == 5 * STEP


def test_phases_take_batch_points_that_fit_them(make: Make, tmp_path: Path):
    other = write_layout(tmp_path / "other.json", FSDP)
    plan = make("--phase", f"{10 * STEP}:2", "--phase", f"{20 * STEP}:6:{other}")
    assert [(phase.end_tokens, phase.layout.engine, phase.batch) for phase in plan.phases] == [
        (10 * STEP, "ddp", BatchPoint(micro_batch=1, grad_accum=1)),
        (30 * STEP, "fsdp", BatchPoint(micro_batch=1, grad_accum=3)),
        (100 * STEP, "ddp", BatchPoint(micro_batch=2, grad_accum=1)),
    ]


def test_a_bare_layout_goes_on_with_the_recipe_of_its_training(make: Make, tmp_path: Path):
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({"layout": to_json(FSDP)}))
    plan = make(target=bare, before=make())
    assert plan.recipe == RECIPE and plan.phases[0].batch == BatchPoint(micro_batch=1, grad_accum=2)
    with pytest.raises(InputError, match="a layout without a recipe"):
        make(target=bare)


def test_a_phase_that_is_over_need_not_fit_another_number_of_devices(make: Make, tmp_path: Path):
    ramp = ("--phase", f"{10 * STEP}:2")
    before = make(*ramp)
    four = write_layout(tmp_path / "four.json", Layout(engine="ddp", dp_replicate=4), batch=None)
    with pytest.raises(InputError, match="a global batch of 2 does not divide evenly over 4"):
        make(*ramp, target=four, before=before, tokens_done=9 * STEP)
    plan = make(*ramp, target=four, before=before, tokens_done=10 * STEP)
    assert [phase.layout.world_size for phase in plan.phases] == [2, 4]


def test_wsd_decays_over_the_last_fifth(make: Make):
    schedule = make("--lr-schedule", "wsd").lr_schedule
    assert (schedule.decay_tokens, schedule.final_share) == (20 * STEP, 0.0)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--phase", "64:3"], "a global batch of 3 does not divide evenly over 2 data-parallel ranks"),
        (["--phase", f"{200 * STEP}:4"], "the phases of --phase take"),
        (["--decay-tokens", "10"], "--decay-tokens belongs to --lr-schedule wsd"),
        (["--data", "/nowhere"], "/nowhere"),
        (["--warmup-tokens", "1e9"], "exceed the"),
        (["--learning-rate", "0"], "must be a number above 0"),
        (["--val-tokens", "1e12"], "held out"),
        (["--start-from", "/nowhere"], "holds no config.json"),
        (["--phase", "many:4"], "must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(argv: list[str], message: str, make: Make):
    with pytest.raises(InputError, match=message) as refused:
        make(*argv)
    assert "\n" not in str(refused.value)


def model_folder(folder: Path, **changes: object) -> Path:
    """Writes a `config.json` of the recipe's model with changes, and a file of weights without any."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**RECIPE.model.to_config(), **changes}))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


OSS = {"model_type": "gpt_oss", "num_hidden_layers": 1, "hidden_size": 16, "vocab_size": 256, "num_local_experts": 8}
BLOOM = {"model_type": "bloom", "n_layer": 1, "hidden_size": 16, "n_head": 2, "vocab_size": 256}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (BLOOM, "holds a bloom model, the recipe has gpt2"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config of .* is stated: its weights are"),
        ({**OSS, "quantization_config": {"quant_method": "mxfp4"}}, "stored as mxfp4, and a training starts from fp32"),
        ({"compression_config": {"format": "x"}}, "compression_config of .* is stated: its weights are"),
    ],
)
def test_a_folder_of_another_model_is_refused_before_anything_starts(
    changes: dict[str, object], message: str, make: Make, tmp_path: Path
):
    with pytest.raises(InputError, match=message):
        make("--start-from", str(model_folder(tmp_path / "model", **changes)))


def test_every_difference_of_the_mathematics_is_named_by_a_process_that_imports_transformers(
    make: Make, tmp_path: Path
):
    folder = model_folder(tmp_path / "model", layer_norm_epsilon=1e-6, n_head=4)
    with pytest.raises(InputError) as refused:
        make("--start-from", str(folder))
    assert str(refused.value).startswith(
        f"{folder} holds another model than the recipe: n_head is 4 there and 2 in the recipe; layer_norm_epsilon is"
        " 1e-06 there and 1e-05 in the recipe: search the folder's own model"
    )


def test_a_training_that_went_on_needs_its_initial_weights_no_more(make: Make, tmp_path: Path):
    before = dataclasses.replace(make(), initial_weights=str(tmp_path / "gone"))
    assert make("--start-from", str(tmp_path / "gone"), before=before, tokens_done=STEP) == before
    with pytest.raises(InputError, match=r"holds no config\.json"):
        make("--start-from", str(tmp_path / "gone"), before=before)


def test_a_bare_layout_trains_the_model_of_the_folder(make: Make, tmp_path: Path):
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({"layout": to_json(FSDP)}))
    folder = model_folder(tmp_path / "model", seq_length=16, global_batch_size=4)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"holds no model\.safetensors"):  # the model itself is the recipe's
        make("--start-from", str(folder), target=bare)


def test_a_training_goes_on_with_the_same_mathematics_alone(make: Make, tmp_path: Path):
    folder = TrainingFolder(tmp_path / "training")
    with folder.locked():
        folder.write_plan(make())
        identity = folder.identity()
        folder.write_plan(make(target=write_layout(tmp_path / "fsdp.json", FSDP)))
        assert folder.identity() == identity
        stored_plan = folder.plan()
        assert stored_plan is not None and stored_plan.phases[0].layout == FSDP
        for argv, message in (
            (["--learning-rate", "0.5"], "the recipe differ"),
            (["--lr-schedule", "constant"], "the learning-rate schedule differ"),
            (["--phase", f"{STEP}:2"], "the phases' tokens and global batches differ"),
        ):
            with pytest.raises(InputError, match=message):
                folder.write_plan(make(*argv))


def test_two_drivers_do_not_train_in_one_folder(tmp_path: Path):
    folder = TrainingFolder(tmp_path / "training")
    with folder.locked(), pytest.raises(InputError, match="another process trains in"), folder.locked():
        pass


def test_every_attempt_has_a_higher_number_and_takes_back_the_wish_to_stop(tmp_path: Path):
    folder = TrainingFolder(tmp_path)
    assert folder.next_attempt() == 1
    folder.ask_to_stop()
    assert folder.next_attempt() == 2
    assert not (tmp_path / ".stop").exists()


def test_a_plan_of_another_format_is_refused(make: Make, tmp_path: Path):
    folder = TrainingFolder(tmp_path)
    folder.write_plan(make())
    path = tmp_path / "training.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(InputError, match="has format 9, this version reads 1"):
        folder.plan()


def test_a_bad_command_ends_with_code_2_and_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write_layout(tmp_path / "layout.json", recipe=dataclasses.replace(RECIPE, data=str(tmp_path / "gone")))
    assert train.main([str(path), "--tokens", "1000"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "training").exists()


def test_devices_that_are_too_few_or_certainly_too_small_are_refused(make: Make):
    cluster = Cluster(device_kind="cpu", device="Made-up CPU", device_memory_gib=1.0, devices_per_node=2)
    check_layouts(make(), cluster)
    with pytest.raises(InputError, match="takes 2 devices, the cluster has 1"):
        check_layouts(make(), dataclasses.replace(cluster, devices_per_node=1))
    words = r"^tiny with the layout DDP, .*, micro-batch 2, needs .* a worker \(Made-up CPU\) has 0 MiB: train where"
    with pytest.raises(InputError, match=words):
        check_layouts(make(), dataclasses.replace(cluster, device_memory_gib=1e-6))


def test_a_layout_that_splits_the_model_is_planned(make: Make, tmp_path: Path):
    layout = Layout(engine="fsdp", zero_stage=3, dp_shard=2, tp=2)
    plan = make(target=write_layout(tmp_path / "tp.json", layout))
    assert plan.phases[0].layout == layout and plan.phases[0].global_batch == RECIPE.global_batch


def test_a_split_that_does_not_divide_is_refused(make: Make, tmp_path: Path):
    target = write_layout(tmp_path / "tp.json", Layout(engine="fsdp", zero_stage=3, dp_shard=2, tp=4))
    with pytest.raises(InputError, match="tp 4"):
        make(target=target)


def test_the_winner_of_a_study_is_trained_with_the_speed_that_was_measured(tmp_path: Path):
    with Study.create(tmp_path, "searched") as study:
        study.record(header("searched", recipes=(RECIPE,)))
        for speed, layout in ((900.0, FSDP), (1000.0, DDP)):
            study.record(Measured(measurement=measurement(recipe=RECIPE, on=layout, micro_batch=2, tokens_per_s=speed)))
    target = read_target("searched", tmp_path, None)
    assert (target.layout, target.recipe, target.tokens_per_s) == (DDP, RECIPE, 1000.0)
    assert target.folder == tmp_path / "searched" / "training"
    assert read_target("searched", tmp_path, RECIPE.id) == target
    with pytest.raises(InputError, match="has no recipe 0123"):
        read_target("searched", tmp_path, "0123")


def test_a_study_without_a_winner_is_refused(tmp_path: Path):
    with Study.create(tmp_path, "empty") as study:
        study.record(header("empty", recipes=(RECIPE,)))
    with pytest.raises(InputError, match="study empty has no winner to train"):
        read_target("empty", tmp_path, None)
