"""The winner as files: `layout.json`, which `--layout` reads back, and `ds_config.json` for DeepSpeed's users."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.errors import InputError
from trainers.codec import from_json, to_json
from trainers.layout import BatchPoint, Layout
from trainers.measurement import Measurement
from trainers.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LayoutFile:
    """What a `layout.json` says. Only the layout must be there, so that one can be written by hand."""

    layout: Layout
    recipe: Recipe | None = None
    batch: BatchPoint | None = None

    def __post_init__(self) -> None:
        if self.recipe is not None and self.batch is not None:
            wanted = BatchPoint.of(self.recipe, self.layout, self.batch.micro_batch)
            if wanted != self.batch:
                raise ValueError(
                    f"micro_batch {self.batch.micro_batch} on {self.layout.data_parallel} data-parallel ranks needs"
                    f" grad_accum {wanted.grad_accum} for global batch {self.recipe.global_batch},"
                    f" got {self.batch.grad_accum}"
                )


def read_layout(path: Path) -> LayoutFile:
    """The layout that a file holds, with its recipe and batch point where they are given.

    Raises:
        InputError: the file cannot be read, or does not hold a valid layout.
    """
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the layout file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"the layout file {path} is not JSON: {error}") from error
    if not isinstance(data, Mapping) or not isinstance(data.get("layout"), Mapping):  # type: ignore[reportUnknownMemberType]
        raise InputError(f'the layout file {path} must hold an object with "layout", as the search writes it')
    parts: dict[str, Any] = {key: data[key] for key in ("layout", "recipe", "batch") if data.get(key) is not None}  # type: ignore[reportUnknownMemberType]
    try:
        return from_json(LayoutFile, parts)
    except ValueError as error:
        raise InputError(f"the layout file {path} is not valid: {error}") from error


def write_winners(folder: Path, winners: Sequence[Measurement]) -> list[Path]:
    """Write each recipe's winner into the study's folder; the paths written.

    The first one's files are `layout.json` and `ds_config.json`, further ones carry their recipe's id in the name.
    Files of an earlier winner are replaced, and taken away where the new one has none.
    """
    written: list[Path] = []
    for number, best in enumerate(winners):
        suffix = f"-{best.recipe.id}" if number else ""
        layout = {"recipe": to_json(best.recipe), "layout": to_json(best.layout), "batch": to_json(best.batch)}
        written.append(_write(folder / f"layout{suffix}.json", {"measurement": best.id, **layout}))
        config = folder / f"ds_config{suffix}.json"
        if best.layout.engine == "deepspeed":
            written.append(_write(config, ds_config(best.recipe, best.layout, best.batch)))
        else:
            config.unlink(missing_ok=True)
    return written


def ds_config(recipe: Recipe, layout: Layout, batch: BatchPoint) -> dict[str, Any]:
    """The configuration with which a DeepSpeed user gets this layout.

    The optimizer is the one of this project's trials, torch's AdamW. Activation checkpointing is not in it: DeepSpeed
    leaves that to the model (`gradient_checkpointing_enable()` for a transformers one).
    """
    if layout.engine != "deepspeed":
        raise ValueError(f"a DeepSpeed configuration wants a deepspeed layout, got {layout.engine}")
    zero: dict[str, Any] = {"stage": layout.zero_stage}
    if layout.bucket_mib:
        # DeepSpeed counts elements, and gradients travel in the compute precision.
        elements = layout.bucket_mib * 2**20 // (4 if recipe.compute_precision in ("fp32", "tf32") else 2)
        zero |= {"reduce_bucket_size": elements}
        if layout.zero_stage in (1, 2):
            zero |= {"allgather_bucket_size": elements}
    if layout.offload in ("optimizer", "all"):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if layout.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, Any] = {
        "train_batch_size": recipe.global_batch,
        "train_micro_batch_size_per_gpu": batch.micro_batch,
        "gradient_accumulation_steps": batch.grad_accum,
        "gradient_clipping": recipe.grad_clip,
        "zero_optimization": zero,
        "data_types": {"grad_accum_dtype": recipe.state_precision},
        "bf16": {"enabled": recipe.compute_precision == "bf16"},
        "fp16": {"enabled": recipe.compute_precision == "fp16"},
        "zero_allow_untested_optimizer": True,
    }
    if recipe.optimizer == "adamw":
        config["optimizer"] = {
            "type": "Adam",
            "params": {
                "lr": recipe.learning_rate,
                "betas": [recipe.beta1, recipe.beta2],
                "eps": recipe.epsilon,
                "weight_decay": recipe.weight_decay,
                "adam_w_mode": True,
                "torch_adam": True,
            },
        }
    return config


def _write(path: Path, data: Mapping[str, Any]) -> Path:
    """Replace the file as a whole: a reader never sees half of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    part.replace(path)
    return path
