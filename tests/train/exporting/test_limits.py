"""An export names what it cannot carry, or refuses it in one sentence, before anything is written."""

from pathlib import Path

import pytest
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser  # type: ignore[attr-defined]
from accelerate.utils.launch import prepare_multi_gpu_env

import platform.train.exporting.command as command
from tests.training.layout_file import write_layout
from tests.training.values import FSDP, STEP
from trainers.spec.layout import Layout

ZERO_3 = Layout(engine="deepspeed", zero_stage=3, dp_shard=2, grad_sync="every")
KERNELS = Layout(
    engine="fsdp",
    zero_stage=3,
    dp_shard=2,
    attention="flex",
    loss="chunked",
    compile="block",
    checkpointing="selective",
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
    ):
        assert f"- {line}\n" in output and f"# Not carried: {line}.\n" in (tmp_path / "out" / "launch.sh").read_text()


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
