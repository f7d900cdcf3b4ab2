"""Makes a space from any transformers `config.json`, so that a model needs no Python to be searched."""

import dataclasses
from pathlib import Path
from typing import Any

from search_spaces import engines, foreign
from search_spaces.degrees import tried
from search_spaces.experts import with_experts
from search_spaces.miniature import on_cpus
from search_spaces.optional import with_installed
from search_spaces.space import Space
from search_spaces.variations import NARROWED, variations
from trainers.records.plain_files import read_json
from trainers.spec.architectures import architecture_of
from trainers.spec.codec import shortened
from trainers.spec.model import ModelSpec
from trainers.spec.model_config import remarks_on
from trainers.spec.recipe import Recipe


def space_of_config(path: Path, remarks: tuple[str, ...] = ()) -> Space:
    """Returns the space of the model in the `config.json` at `path`.

    Length and global batch are the file's `seq_length` and `global_batch_size`; by default 2048 (or the model's number
    of positions, if smaller) and 512, and `Space.assumption` reports defaults. The axes are the same as in the built-in
    spaces. `remarks` are further sentences on the model.

    Raises:
        ValueError: the file cannot be read, is no JSON object, or lacks a needed value; one sentence.
    """
    name = _name(path)
    config = read_json(path, links=True)
    if "layout" in config and "model_type" not in config:
        raise ValueError(f"{path} is a layout and no model: a search takes it by --layout")
    if "model_type" not in config and (sentence := foreign.refusal(path, config)):
        raise ValueError(sentence)
    model = ModelSpec.from_config(config, name=name)
    length, batch = _stated(config, "seq_length", name), _stated(config, "global_batch_size", name)
    seq_len, global_batch = length or min(_SEQ_LEN, model.max_positions or _SEQ_LEN), batch or _GLOBAL_BATCH
    # For sdpa ALiBi is a bias and a window a mask, which exclude FlashAttention. FlexAttention supports both at little
    # cost, and skips blocks without visible keys. Only it is fused with sinks.
    has_sinks = architecture_of(model.architecture).attention_sinks
    fused = "flex" if model.position == "alibi" or model.window or has_sinks else "sdpa"
    kernels = (fused, "sdpa" if model.window and not has_sinks else "eager")
    space = Space(
        name=name,
        summary=f"{name} ({model.architecture}, {_parameters(model)}), sequence {seq_len}",
        recipe=Recipe(model=model, seq_len=seq_len, global_batch=global_batch),
        axes={
            "attention": kernels,
            "mlp": ("plain",),
            "compile": ("block", "none"),
            "loss": ("chunked", "plain"),
            "checkpointing": ("none", "selective", "full"),
            "grad_sync": ("last", "every"),
            "zero_stage": (3, 1, 2, 0),
            "engine": engines.shards_first(),
        },
        variations=variations(*kernels),
        narrowed=NARROWED,
        model_parallel={
            # For sdpa a context-parallel rank's part of the queries needs a mask.
            "attention": tuple(dict.fromkeys((fused, "flex"))),
            "compile": ("block",),
            "loss": ("chunked",),
            "grad_sync": ("last",),
            "engine": engines.splitting(engines.shards_first()),
            **tried("cp"),
            "cp_exchange": ("gather", "all_to_all"),
            "virtual": (1, 2),
        },
        micro_batches=(1,),
        doubling=True,
        assumed=tuple(field for field, stated in (("seq_len", length), ("global_batch", batch)) if not stated),
        remarks=(*remarks, *remarks_on(config, name)),
    )
    has_fused_mlp = architecture_of(model.architecture).has_fused_mlp(config)
    space = with_installed(with_experts(space), "attention", *(("mlp",) if has_fused_mlp else ()), "loss")
    return dataclasses.replace(space, miniature=on_cpus(space))


_SEQ_LEN, _GLOBAL_BATCH = 2048, 512
"""Length and global batch if a configuration does not state them."""


def _parameters(model: ModelSpec) -> str:
    """Returns text on the number of parameters, and of active ones for a model with experts."""
    active = f", {model.active_parameters / 1e9:.3g} B active" if model.num_experts else ""
    return f"{model.num_parameters / 1e9:.3g} B parameters{active}"


def _name(path: Path) -> str:
    """Returns the model's name: from the file, from its folder, or in the hub's cache (where folders are commits) from
    the model's folder.
    """
    if path.name != "config.json":
        return path.stem
    folders = path.absolute().parent.parts
    if len(folders) > 2 and folders[-2] == "snapshots" and folders[-3].startswith("models--"):
        return folders[-3].rpartition("--")[2]
    return path.absolute().parent.name or "model"


def _stated(config: dict[str, Any], key: str, name: str) -> int:
    """Returns the whole number that the configuration states under `key`, 0 if it states none."""
    value = config.get(key) or 0
    if type(value) is not int or value < 0:
        raise ValueError(f"{key} of {name} must be a whole number above 0 or left out, got {shortened(value)}")
    return value
