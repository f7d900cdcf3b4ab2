"""An export names what it cannot carry, or refuses it in one sentence, before anything is written."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Literal

import pytest
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser  # type: ignore[attr-defined]
from accelerate.utils.launch import prepare_multi_gpu_env
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import platform.train.exporting.command as command
import platform.train.exporting.plain_training as plain_training
from tests.training.layout_file import write_layout
from tests.training.values import DDP, FSDP, MODEL, RECIPE, STEP
from trainers.engines.settings import make_optimizer
from trainers.spec.layout import Layout
from trainers.training.export import write_config

LONG = dataclasses.replace(MODEL, max_positions=2048)

ZERO_3 = Layout(engine="deepspeed", zero_stage=3, dp_shard=2, grad_sync="every")
KERNELS = Layout(
    engine="fsdp",
    zero_stage=3,
    dp_shard=2,
    attention="flex",
    loss="chunked",
    compile="block",
    checkpointing="selective",
    offload="moments",
)


def export(tmp_path: Path, layout: Layout, *argv: str) -> int:
    target = write_layout(tmp_path / "layout.json", layout)
    return command.main([str(target), "--tokens", str(STEP), "--out", str(tmp_path / "out"), *argv])


def test_kernels_that_only_this_project_has_are_named_with_what_runs_in_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert export(tmp_path, KERNELS, "--to", "accelerate") == 0
    output = capsys.readouterr().err
    for line in (
        "flex attention: transformers' own sdpa attention in its place",
        "chunked loss: a loss over all logits at once, which takes more memory",
        "compile block: nothing is compiled",
        "selective checkpointing: every block is checkpointed, which takes more time",
        "offload moments: nothing lies in host memory, which takes more of the devices'",
    ):
        assert f"- {line}\n" in output and f"# Not carried: {line}.\n" in (tmp_path / "out" / "launch.sh").read_text()


def test_kept_fp8_weights_are_not_carried_since_their_products_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    even = dataclasses.replace(LONG, architecture="gpt_neox", hidden_size=32)
    recipe = dataclasses.replace(RECIPE, model=even, seq_len=16, compute_precision="fp8_tensorwise")
    layout = Layout(engine="ddp", dp_replicate=2, fp8_weights="kept")
    target = write_layout(tmp_path / "layout.json", layout, recipe=recipe)
    argv = [str(target), "--to", "accelerate", "--tokens", str(STEP), "--out", str(tmp_path / "out")]
    assert command.main(argv) == 0
    output = capsys.readouterr().err
    assert "- FP8 weights kept: no products in FP8\n" in output
    assert "- fp8_tensorwise compute: bf16 in its place, which is another recipe\n" in output


def test_accelerate_reads_the_configuration_as_it_is_meant(tmp_path: Path):
    assert export(tmp_path, FSDP, "--to", "accelerate") == 0
    path = tmp_path / "out" / "accelerate.yaml"
    args = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    args, *_ = _validate_launch_command(args)
    environment = prepare_multi_gpu_env(args)
    assert (args.num_processes, args.use_fsdp, yaml.safe_load(path.read_text())["distributed_type"]) == (
        2,
        True,
        "FSDP",
    )
    expected = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"}
    assert expected.items() <= environment.items()
    assert environment["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"


@pytest.mark.parametrize(
    ("layout", "argv", "sentence"),
    [
        (ZERO_3, ("--to", "accelerate"), "a layout of DeepSpeed is not one of accelerate: export it --to deepspeed"),
        (FSDP, ("--to", "deepspeed"), "a layout of FSDP2 is not one of deepspeed: export it --to accelerate"),
        (FSDP, ("--to", "accelerate", "--device", "cpu"), "accelerate shards on GPUs alone"),
        (Layout(engine="ddp", tp=2), ("--to", "accelerate"), "accelerate splits no model as dp 1 tp 2 does"),
        (FSDP, ("--to", "torchrun", "--run", "2"), "--run takes at least 5 steps"),
        (FSDP, ("--to", "torchrun", "--tokens", "0.5"), "needs --tokens, a whole number"),
        (FSDP, (), "holds no checkpoint of a training"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_a_sentence(
    layout: Layout, argv: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert export(tmp_path, layout, *argv) == 2
    output = capsys.readouterr().err
    assert sentence in output and output.startswith("error: ") and output.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "words"), [("included", "sequences of the included text"), ("stream", "2,048 sequences of the stream")]
)
def test_no_script_trains_for_long_on_the_few_sequences_that_come_with_it(
    source: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    recipe = dataclasses.replace(RECIPE, data=source, data_order="file", seq_len=2048, model=LONG)
    target = write_layout(tmp_path / "layout.json", FSDP, recipe=recipe)
    argv = [str(target), "--to", "accelerate", "--tokens", "300e9", "--out", str(tmp_path / "out")]
    assert command.main(argv) == 2
    output = " ".join(capsys.readouterr().err.split())
    assert words in output and "that come with an export: give your own by --data, or --tokens of at most" in output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("layout", "expected"), [(DDP, False), (FSDP, None)])
def test_ddp_looks_for_no_unused_parameters(layout: Layout, expected: bool | None, tmp_path: Path):
    assert export(tmp_path, layout, "--to", "accelerate") == 0
    arguments = json.loads((tmp_path / "out" / "training_arguments.json").read_text())
    assert arguments.get("ddp_find_unused_parameters") is expected


@pytest.mark.parametrize(("decay", "undecayed"), [("all", 0), ("matrices", 10)])
def test_a_script_decays_what_the_recipe_says(
    decay: Literal["all", "matrices"], undecayed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Checks norms and biases of a GPT-2 of one layer."""
    recipe = dataclasses.replace(RECIPE, decay=decay)
    target = write_layout(tmp_path / "layout.json", DDP, recipe=recipe)
    assert command.main([str(target), "--to", "accelerate", "--tokens", str(STEP), "--out", str(tmp_path / "o")]) == 0
    monkeypatch.setattr(plain_training, "HERE", tmp_path / "o")
    settings = json.loads((tmp_path / "o" / "settings.json").read_text())
    model = plain_training.make_model(settings)
    ours = make_optimizer(model.parameters(), recipe)
    for optimizer in (plain_training.make_optimizer(model, settings), ours):
        decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        vectors = [decays[id(parameter)] for parameter in model.parameters() if parameter.dim() == 1]
        assert len(decays) == len([*model.parameters()]) and vectors.count(0.0) == undecayed
        assert all(decays[id(parameter)] == 0.1 for parameter in model.parameters() if parameter.dim() > 1)


def test_a_script_leaves_a_trained_model_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "trained").mkdir()
    (tmp_path / "settings.json").write_text("{}")
    monkeypatch.setattr(plain_training, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    plain_training.main()
    assert "there is nothing left to do" in capsys.readouterr().out


@pytest.mark.parametrize("has_weights", [True, False])
def test_a_script_trains_without_dropout_whatever_the_folder_of_weights_says(
    has_weights: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=256, n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "weights")  # with transformers' dropout of 0.1
    write_config(MODEL, tmp_path / "model")
    monkeypatch.setattr(plain_training, "HERE", tmp_path)
    weights = str(tmp_path / "weights") if has_weights else ""
    settings = {"seed": 0, "dtype": "float32", "attention": "eager", "weights": weights}
    model = plain_training.make_model(settings)
    assert model.training and {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.0}
