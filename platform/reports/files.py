"""What a study leaves in its folder beside the journal: the table as CSV and Parquet, and each winner as files.

`layout.json` is read back by `--layout`; `ds_config.json` stands where DeepSpeed won, for its users.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.errors import InputError
from platform.reports.summary import winners
from platform.reports.table import to_rows, write_csv
from platform.study.history import History
from platform.study.journal import JOURNAL
from platform.study.parquet import PARQUET, write_parquet
from platform.study.replace import replacing
from trainers.codec import from_json, to_json
from trainers.layout import BatchPoint, Layout
from trainers.measurement import Measurement
from trainers.recipe import Recipe

CSV = "measurements.csv"


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


def write_results(folder: Path, history: History) -> list[Path]:
    """Write the table and the winners into the study's folder, in place of what an earlier session left; the paths.

    Raises:
        InputError: a file cannot be written.
    """
    header = history.header
    assert header is not None, "a study without its first line has no results"
    table, parquet = folder / CSV, folder / PARQUET
    rows = to_rows(
        history.measurements, cluster=header.cluster, source=f"study {header.name}", path=str(folder / JOURNAL)
    )
    write_csv(table, rows)
    write_parquet(parquet, history.measurements)
    best = winners(history.measurements)
    return [table, parquet, *_write_winners(folder, header.recipes, best)]


def _write_winners(folder: Path, recipes: Sequence[Recipe], best: Mapping[str, Measurement]) -> list[Path]:
    """The first recipe's files are `layout.json` and `ds_config.json`, the others' carry the recipe's id as well."""
    written: list[Path] = []
    for number, recipe in enumerate(recipes):
        suffix = f"-{recipe.id}" if number else ""
        layout, config = folder / f"layout{suffix}.json", folder / f"ds_config{suffix}.json"
        won = best.get(recipe.id)
        if won is None:
            layout.unlink(missing_ok=True)
        else:
            parts = {"recipe": to_json(won.recipe), "layout": to_json(won.layout), "batch": to_json(won.batch)}
            written.append(_write(layout, {"measurement": won.id, **parts}))
        if won is not None and won.layout.engine == "deepspeed":
            written.append(_write(config, ds_config(won.recipe, won.layout, won.batch)))
        else:
            config.unlink(missing_ok=True)
    return written


def ds_config(recipe: Recipe, layout: Layout, batch: BatchPoint) -> dict[str, Any]:
    """The configuration with which a DeepSpeed user gets what was measured.

    Sharding, precisions and buckets are those of this project's own engine; a test holds the two together. Here too
    are the batch sizes, and torch's AdamW by DeepSpeed's name for it; it has none for Adafactor: that of
    transformers is handed to `deepspeed.initialize` itself. Activation checkpointing is not in it: DeepSpeed leaves
    that to the model (`gradient_checkpointing_enable()` for a transformers one).
    """
    if layout.engine != "deepspeed":
        raise ValueError(f"a DeepSpeed configuration wants a deepspeed layout, got {layout.engine}")
    half = recipe.compute_precision in ("bf16", "fp16")
    config: dict[str, Any] = {
        "train_batch_size": recipe.global_batch,
        "train_micro_batch_size_per_gpu": batch.micro_batch,
        "gradient_accumulation_steps": batch.grad_accum,
        "gradient_clipping": recipe.grad_clip,
        "zero_optimization": _zero(recipe, layout, half),
        "zero_allow_untested_optimizer": True,
        "communication_data_type": recipe.state_precision,
        "data_types": {"grad_accum_dtype": recipe.state_precision},
    }
    if half and layout.zero_stage == 0:
        # Its own 16-bit modes would add gradients up in 16 bits at this stage, which is another recipe.
        dtype = "bfloat16" if recipe.compute_precision == "bf16" else "float16"
        config["torch_autocast"] = {"enabled": True, "dtype": dtype}
    elif recipe.compute_precision == "bf16":
        config["bf16"] = {"enabled": True}
        if recipe.state_precision == "bf16":
            config["bf16"] |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    elif recipe.compute_precision == "fp16":
        scaling = {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 2000, "hysteresis": 1}
        config["fp16"] = {"enabled": True, **scaling}
    if recipe.optimizer == "adamw":
        numbers = {"lr": recipe.learning_rate, "betas": [recipe.beta1, recipe.beta2], "eps": recipe.epsilon}
        kind = {"weight_decay": recipe.weight_decay, "adam_w_mode": True, "torch_adam": True}
        config["optimizer"] = {"type": "Adam", "params": {**numbers, **kind}}
    return config


def _zero(recipe: Recipe, layout: Layout, half: bool) -> dict[str, Any]:
    elements = min(500_000_000, recipe.model.num_parameters)
    if layout.bucket_mib:
        elements = layout.bucket_mib * 2**20 // (2 if half else 4)
    zero: dict[str, Any] = {
        "stage": layout.zero_stage,
        "reduce_bucket_size": elements,
        "allgather_bucket_size": elements,
    }
    if layout.zero_stage == 3:
        zero["stage3_param_persistence_threshold"] = min(100_000, recipe.model.hidden_size**2 - 1)
    if layout.offload in ("optimizer", "all"):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if layout.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return zero


def _write(path: Path, data: Mapping[str, Any]) -> Path:
    with replacing(path) as part:
        part.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return path
