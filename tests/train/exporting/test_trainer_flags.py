"""Flags of a layout for a script with transformers' TrainingArguments, what has none by its name, and templates."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from platform.common.errors import InputError
from platform.search.__main__ import parse
from platform.search.setup.request import read_request
from platform.train.exporting.command import main
from platform.train.exporting.trainer_flags import trainer_flags
from tests.samples import miniature
from trainers.spec.batch import BatchPoint, values_of
from trainers.spec.layout import Layout

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


def test_the_command_refuses_what_flags_do_not_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpt2", "--to", "trainer-flags", "--tokens", "2e9", "--out", str(tmp_path / "out")]) == 2
    assert "leave --tokens, --data, --start-from and --run out" in capsys.readouterr().err


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
