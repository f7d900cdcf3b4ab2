"""Writes the files of an export: a launch script, the program it starts, and notes on unsupported parts."""

import dataclasses
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from platform.common.errors import InputError
from platform.study.atomic_write import replacing
from platform.study.folder import make_folder
from platform.train.exporting.limits import Program, attention_name, not_carried, refusal
from platform.train.training_folder import TrainingFolder
from trainers import data
from trainers.data import INCLUDED_TEXT, ParquetTokens
from trainers.engines.create import engine_config
from trainers.records.training import TrainingPlan
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import INCLUDED

Device = Literal["cuda", "cpu"]

FORMATS = ("transformers", "torchrun", "accelerate", "deepspeed", "trainer-flags")
"""Programs that an export can be written for."""
LAUNCH, SCRIPT, STEPS = "launch.sh", "train.py", "steps.json"
_ROOT = Path(__file__).parents[__name__.count(".")]
_STREAM_TOKENS = 2**22
"""Tokens of the seeded stream that are written to a file, which other programs read repeatedly."""
_MOST_EPOCHS = 10
"""Largest number of epochs over sequences written with the export; with more, a model learns them by heart."""
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}

_HEAD = """#!/bin/sh
# {about}
{lines}set -eu
cd "$(dirname "$0")"
NNODES=${{NNODES:-1}}
if [ "$NNODES" = 1 ]; then where={alone}
else where="{several}"
fi
"""
_TORCHRUN = """export PYTHONPATH="${{LAYOUT_SEARCH:-{root}}}${{PYTHONPATH:+:$PYTHONPATH}}"
exec "${{PYTHON:-python}}" -m torch.distributed.run $where --nproc-per-node $(({ranks} / NNODES)) \\
    -m trainers.training.torchrun "$PWD" "$@"
"""
_PLAIN = """exec "${{PYTHON:-python}}" -m torch.distributed.run $where --nproc-per-node $(({ranks} / NNODES)) \\
    train.py "$@"
"""
_ACCELERATE = """exec "${{PYTHON:-python}}" -m accelerate.commands.launch --config_file accelerate.yaml $where \\
    train.py "$@"
"""
_OF_TORCH = "--nnodes $NNODES --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port ${MASTER_PORT:-29500}"
_OF_ACCELERATE = (
    "--num_machines $NNODES --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR"
    " --main_process_port ${MASTER_PORT:-29500}"
)


def write_torchrun(plan: TrainingPlan, out: Path) -> list[str]:
    """Writes a training's folder with a script for torchrun; returns the differences from `platform.train`."""
    limits = ["Ray: lost workers are not replaced (give the command again), and MLflow has no run of it"]
    folder = TrainingFolder(out)
    with folder.locked():
        folder.write_plan(plan)
    body = _TORCHRUN.format(root=_ROOT, ranks=plan.phases[0].layout.world_size)
    description = (
        "Trains with this project's engines under torchrun. LAYOUT_SEARCH names the checkout on another machine."
    )
    _write_launch(out, description, plan, limits, body)
    return limits


def write_accelerate(plan: TrainingPlan, out: Path, device: Device) -> list[str]:
    """Writes accelerate's configuration, TrainingArguments and a script; returns the differences from this project.

    Raises:
        InputError: accelerate cannot train the layout, or not on this kind of device.
    """
    layout = plan.phases[0].layout
    _check(plan, "accelerate")
    if device == "cpu" and layout.zero_stage:
        raise InputError(
            f"accelerate shards on GPUs alone, got {layout.rules.title} with --device cpu: export it --to torchrun"
        )
    limits = _write_plain(plan, out, "accelerate")
    _write(out / "accelerate.yaml", yaml.safe_dump(_accelerate_config(plan, device), sort_keys=False))
    _write_json(out / "training_arguments.json", _training_arguments(plan, device))
    description = "Trains with transformers' Trainer, laid out by accelerate."
    if device == "cpu":  # `accelerate launch` starts several CPU processes only by MPI
        _write_launch(out, description, plan, limits, _PLAIN.format(ranks=layout.world_size))
    else:
        _write_launch(out, description, plan, limits, _ACCELERATE.format(), one_node='""', several_nodes=_OF_ACCELERATE)
    return limits


def write_caveats(out: Path, caveats: Sequence[str]) -> None:
    first, *lines = (out / LAUNCH).read_text(encoding="utf-8").splitlines()
    _write(out / LAUNCH, "\n".join([first, *(f"# {caveat}" for caveat in caveats), *lines, ""]))
    (out / LAUNCH).chmod(0o755)


def _half(recipe: Recipe) -> str:
    """Returns "bf16" or "fp16" if matrix products have this precision over fp32 states; "" otherwise."""
    half = recipe.activation_precision if recipe.state_precision == "fp32" else ""
    return half if half in ("bf16", "fp16") else ""


def _accelerate_config(plan: TrainingPlan, device: Device) -> dict[str, Any]:
    layout = plan.phases[0].layout
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_CPU" if device == "cpu" else "FSDP" if layout.zero_stage else "MULTI_GPU",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": _half(plan.recipe) or "no",
        "num_machines": 1,
        "num_processes": layout.world_size,
        "use_cpu": device == "cpu",
    }
    if layout.zero_stage:
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": layout.zero_stage == 3,
            "fsdp_offload_params": layout.offload == "all",
            "fsdp_activation_checkpointing": layout.checkpointing != "none",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    return config


def _training_arguments(plan: TrainingPlan, device: Device) -> dict[str, Any]:
    layout, recipe, batch, half = plan.phases[0].layout, plan.recipe, plan.phases[0].batch, _half(plan.recipe)
    checkpoints = layout.checkpointing != "none" and not layout.zero_stage
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": batch.micro_batch,
        "gradient_accumulation_steps": batch.grad_accum,
        "learning_rate": recipe.learning_rate,
        "max_grad_norm": recipe.grad_clip,
        "bf16": half == "bf16",
        "fp16": half == "fp16",
        "gradient_checkpointing": checkpoints,
        "torch_compile": layout.compile == "model",
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": layout.grad_sync == "every"}},
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",  # the script decides when to save
        "report_to": "none",
        "seed": recipe.seed,
        "use_cpu": device == "cpu",
    }
    if not layout.zero_stage:  # DDP; by default Trainer makes it look for unused parameters in each step
        arguments["ddp_find_unused_parameters"] = False
    if layout.bucket_mib and not layout.zero_stage:
        arguments["ddp_bucket_cap_mb"] = layout.bucket_mib
    if checkpoints:
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    return arguments


def write_deepspeed(plan: TrainingPlan, out: Path) -> list[str]:
    """Writes `ds_config.json` and a script that trains with it; returns the differences from this project.

    Raises:
        InputError: DeepSpeed cannot train the layout.
    """
    _check(plan, "deepspeed")
    phase = plan.phases[0]
    limits = _write_plain(plan, out, "deepspeed")
    _write_json(out / "ds_config.json", engine_config(plan.recipe, phase.layout, phase.batch))
    body = _PLAIN.format(ranks=phase.layout.world_size)
    _write_launch(out, "Trains with DeepSpeed.", plan, limits, body)
    return limits


def _check(plan: TrainingPlan, program: Program) -> None:
    if reason := refusal(plan, program):
        raise InputError(reason)


def _write_plain(plan: TrainingPlan, out: Path, program: Program) -> list[str]:
    """Writes the files that the plain script reads for every program; returns the differences from this project."""
    from trainers.engines.settings import ADAFACTOR  # imports torch
    from trainers.training.export import write_config, write_tokenizer

    phase, recipe = plan.phases[0], plan.recipe
    limits = list(not_carried(plan, program))
    sequences = _num_sequences(plan)
    make_folder(out)
    path = _write_data(plan, out, sequences)
    write_config(recipe.model, out / "model")
    if not write_tokenizer(recipe, out / "model", initial_weights=plan.initial_weights):
        limits.append("a tokenizer beside the model: none is known of these data")
    optimizer: dict[str, Any] = {"name": recipe.optimizer, "lr": recipe.learning_rate}
    optimizer["weight_decay"] = recipe.weight_decay
    if recipe.optimizer == "adafactor":
        optimizer |= ADAFACTOR
    else:
        optimizer |= {"betas": [recipe.beta1, recipe.beta2], "eps": recipe.epsilon}
    settings: dict[str, Any] = {
        "with": program,
        "steps": -(-plan.tokens // plan.tokens_per_step(phase)),
        "seq_len": recipe.seq_len,
        "global_batch": phase.global_batch,
        "micro_batch": phase.batch.micro_batch,
        "grad_accum": phase.batch.grad_accum,
        "data": path,
        "sequences": sequences,
        "weights": plan.initial_weights,
        "seed": recipe.seed,
        "dtype": _DTYPES[recipe.state_precision],
        "attention": attention_name(plan),
        "gradient_checkpointing": phase.layout.checkpointing != "none",
        "matmul_precision": "high" if recipe.compute_precision == "tf32" else "highest",
        "optimizer": optimizer,
        "decay": recipe.decay,
        "lr_schedule": dataclasses.asdict(plan.lr_schedule),
    }
    _write_json(out / "settings.json", settings)
    _write(out / SCRIPT, (Path(__file__).parent / "plain_training.py").read_text(encoding="utf-8"))
    return limits


def _num_sequences(plan: TrainingPlan) -> int:
    """Returns the number of sequences in the script's epoch.

    Raises:
        InputError: the sequences are written with the export, and the training would repeat them too often.
    """
    recipe, held_out = plan.recipe, plan.validation
    source = data.plain_source(recipe, held_out=0 if held_out.data else held_out.sequences)
    is_included = recipe.data == INCLUDED
    if isinstance(source, ParquetTokens) and not is_included:
        return source.num_sequences
    number = max(recipe.global_batch, min(plan.tokens, _STREAM_TOKENS) // recipe.seq_len)
    number = source.num_sequences if isinstance(source, ParquetTokens) else number
    epochs = plan.tokens / (number * recipe.seq_len)
    if epochs > _MOST_EPOCHS:
        limit = _MOST_EPOCHS * number * recipe.seq_len
        raise InputError(
            f"{plan.tokens:,} tokens are {epochs:,.0f} times the {number:,} sequences of"
            f" {'the included text' if is_included else 'the stream'} that come with an export: give your own by"
            f" --data, or --tokens of at most {limit:,} to see that it runs"
        )
    return number


def _write_data(plan: TrainingPlan, out: Path, sequences: int) -> str:
    """Writes the token file if necessary, and returns the path by which the script reads it."""
    recipe = plan.recipe
    if recipe.data == INCLUDED:
        shutil.copy(INCLUDED_TEXT, out / "tokens.parquet")
        return "tokens.parquet"
    source = data.plain_source(recipe)
    if isinstance(source, ParquetTokens):
        return recipe.data
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = source.tokens(source.position_after(0), range(sequences + 1))[:, :-1]
    pq.write_table(pa.table({"tokens": pa.array(rows.tolist(), pa.list_(pa.int32()))}), out / "tokens.parquet")
    return "tokens.parquet"


def _facts(plan: TrainingPlan) -> Iterator[str]:
    """Yields sentences on the model and the data."""
    recipe, content = plan.recipe, plan.data_content
    yield f"{recipe.label}. {recipe.regularization}"
    number = f", {content.tokens:,} tokens with ids below {content.vocab_size:,}" if content else ""
    yield f"Data: {recipe.data}{number}; the last {plan.validation.sequences} sequences are held out."


def _write_launch(
    out: Path,
    description: str,
    plan: TrainingPlan,
    limits: Sequence[str],
    body: str,
    *,
    one_node: str = "--standalone",
    several_nodes: str = _OF_TORCH,
) -> None:
    lines = "".join(f"# {fact}\n" for fact in _facts(plan))
    lines += "".join(f"# Not carried: {limit}.\n" for limit in limits)
    lines += "# On several nodes set NNODES, NODE_RANK and MASTER_ADDR on each.\n"
    _write(out / LAUNCH, _HEAD.format(about=description, lines=lines, alone=one_node, several=several_nodes) + body)
    (out / LAUNCH).chmod(0o755)


def _write(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def _write_json(path: Path, content: Any) -> None:
    _write(path, json.dumps(content, indent=2) + "\n")
