"""Flags of a layout for a script with transformers' TrainingArguments, what has none by its name, and templates."""

import dataclasses
import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest

from platform.common.errors import InputError
from platform.search.__main__ import parse
from platform.search.setup.request import read_request
from platform.study.layout_file import write_layout
from platform.train.exporting.command import main
from platform.train.exporting.trainer_flags import done_otherwise, trainer_flags
from tests.samples import miniature
from trainers.spec.axis import axes_of, choices_of
from trainers.spec.batch import BatchPoint, values_of
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

OF_THE_SCRIPT = {
    *("seq_len", "global_batch", "data", "seed", "data_order", "grad_accum", "document_tokens", "routing"),
    *("lora_targets", "lora_alpha", "balance_loss", "balance_rate"),
}
"""Axes that are the script's or the point's own, belong to another axis, or need a model with experts."""
OTHER: dict[str, Any] = {
    "learning_rate": 2e-4, "weight_decay": 0.2, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "grad_clip": 2.0,
    "adapter": "lora_8",
}  # fmt: skip
BATCH = BatchPoint(micro_batch=2, grad_accum=4)
TEMPLATES = Path(__file__).parents[3] / "docs" / "templates"


def _arguments(flags: list[str]) -> Any:
    from transformers import HfArgumentParser, TrainingArguments

    parser = HfArgumentParser(TrainingArguments)  # type: ignore[reportArgumentType]
    (arguments,) = parser.parse_args_into_dataclasses(["--output_dir", "out", "--use_cpu", *flags])
    return arguments


def test_training_arguments_reads_what_the_layout_says() -> None:
    layout = Layout(
        engine="ddp", dp_replicate=2, grad_sync="every", checkpointing="full", attention="sdpa", bucket_mib=50
    )
    arguments = _arguments(trainer_flags(miniature(), layout, BATCH))
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (2, 4)
    assert arguments.gradient_checkpointing and arguments.ddp_bucket_cap_mb == 50 and not arguments.torch_compile
    assert arguments.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}
    assert (arguments.learning_rate, arguments.adam_beta2, arguments.optim) == (1e-4, 0.95, "adamw_torch_fused")


@pytest.mark.parametrize("name", sorted(set(axes_of(Recipe)) - OF_THE_SCRIPT))
def test_an_axis_of_the_recipe_is_read_by_trainer_or_refused_or_told(name: str) -> None:
    """Checks each axis by a value other than its default: Trainer must get another one too, or the export say so."""
    plain = dataclasses.replace(miniature(), compute_precision="bf16")
    value = OTHER.get(name) or next(value for value in choices_of(Recipe)[name] if value != getattr(plain, name))
    other = dataclasses.replace(plain, **{name: value})
    layout = Layout(engine="ddp", dp_replicate=2, attention="sdpa")
    told = set(done_otherwise(other)) ^ set(done_otherwise(plain))
    try:
        flags = trainer_flags(other, layout, BATCH)
    except InputError as error:
        assert "has no flag for" in str(error)
        return
    assert told or _arguments(flags).to_dict() != _arguments(trainer_flags(plain, layout, BATCH)).to_dict()


def test_ddp_does_not_look_for_unused_parameters() -> None:
    layout = Layout(engine="ddp", dp_replicate=2, attention="sdpa")
    assert _arguments(trainer_flags(miniature(), layout, BATCH)).ddp_find_unused_parameters is False


def test_the_export_shows_the_study_s_caveats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, caveat = miniature(), "Not gated: whether the winner trains as a plain layout does was not compared."
    layout = Layout(engine="ddp", dp_replicate=2, attention="sdpa")
    write_layout(tmp_path / "layout.json", recipe, layout, BatchPoint.of(recipe, layout, 2), {"caveats": [caveat]})
    out = tmp_path / "out"
    below_a_file = tmp_path / "layout.json" / "flags"
    assert main([str(tmp_path / "layout.json"), "--to", "trainer-flags", "--out", str(below_a_file)]) == 2
    assert f"the folder {below_a_file} cannot be made: Not a directory" in capsys.readouterr().err
    assert main([str(tmp_path / "layout.json"), "--to", "trainer-flags", "--out", str(out)]) == 0
    printed = capsys.readouterr().err
    assert caveat in printed and "weight decay of norms and biases: Trainer's takes matrices alone" in printed
    assert _arguments(shlex.split((out / "flags.txt").read_text())).weight_decay == recipe.weight_decay


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"engine": "fsdp", "zero_stage": 3, "dp_shard": 2}, "FSDP2 stage 3"),
        ({"engine": "ddp", "checkpointing": "selective"}, "selective checkpointing"),
        ({"engine": "ddp", "attention": "eager"}, "eager"),
        ({"engine": "ddp", "loss": "chunked", "compile": "block"}, "chunked loss, compile block"),
    ],
)
def test_what_has_no_flag_is_named(fields: dict[str, Any], words: str) -> None:
    values: dict[str, Any] = {"attention": "sdpa", **fields}
    layout = Layout(**values)
    with pytest.raises(InputError, match=f"transformers' Trainer has no flag for {words}: export it"):
        trainer_flags(miniature(), layout, BATCH)


@pytest.mark.parametrize(
    ("program", "argv", "words"),
    [
        ("trainer-flags", ["--tokens", "2e9", "--merged"], "--tokens, --merged"),
        ("torchrun", ["--tokens", "2e9", "--merged"], "--merged"),
        ("accelerate", ["--tokens", "2e9", "--dtype", "bf16", "--merged"], "--merged, --dtype"),
    ],
)
def test_an_option_without_effect_is_refused(
    program: str, argv: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gpt2", "--to", program, *argv, "--out", str(tmp_path / "out")]) == 2
    assert f"an export --to {program} has no use for {words}: leave out" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_template_is_a_space_whose_flags_there_are(path: Path) -> None:
    space = read_request(parse([str(path), "--seq-len", "16", "--gpus", "2"])).space
    assert len(space.candidates(2)[0]) == len(space.axes["flags"]) > 1 and space.finds_largest
    workload = space.recipe.command
    assert workload is not None
    for candidate in space.candidates(2)[0]:
        point = values_of(candidate.layout, candidate.batch_points()[0])
        words = workload.filled({**point, "out": "out", "node_rank": 0, "head": "10.0.0.1", "port": 29500})
        script = words.index("train.py")
        if path.stem == "trainer":
            assert _arguments([*words[script + 1 :]]).per_device_train_batch_size == 1
        elif path.stem == "trl":  # tests/whole_searches/test_own_command.py runs it, where TRL is installed
            assert ("--max_length", "2048") in itertools.pairwise(words)
        else:
            from accelerate.commands.launch import launch_command_parser

            launch = launch_command_parser().parse_args([*words[2:]])
            assert (launch.training_script, launch.num_processes, launch.main_process_port) == ("train.py", 2, 29500)
