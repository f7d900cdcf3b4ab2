"""A checkpoint as a transformers folder: `from_pretrained` gives the model that was trained, or peft its adapters."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from trainers.data.index import TOKENIZER, read_index
from trainers.distributed.state import FROZEN, WEIGHT, TensorPart, whole_tensor
from trainers.engines.settings import model_dtype
from trainers.models.weights import draw
from trainers.records.checkpoints import read_manifest
from trainers.spec import engines
from trainers.spec.adapters import DOWN, UP
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import INCLUDED, Recipe
from trainers.startup import import_stubs
from trainers.training.base_digest import base_digest
from trainers.training.checkpoint_reading import TensorReader, check_base
from trainers.training.initial_weights import WeightFiles

_OF_ENGINES = tuple(package for rules in engines.registered() for package in rules.packages)
UNUSED = () if "transformers" in sys.modules else (*import_stubs.HIDDEN, *_OF_ENGINES)
"""Modules that transformers would import, and that warn of what they do not find. Where it was imported before it
relies on those that it saw.
"""

with import_stubs.imports(UNUSED):
    from transformers.pytorch_utils import Conv1D

    from trainers.models import model

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@import_stubs.imports(UNUSED)
def export(checkpoint: Path, recipe: Recipe, out: Path, *, dtype: str = "fp32", base: str = "") -> None:
    """Writes the weights of `checkpoint` with the model's configuration into the folder `out`, in one process. Adapters
    are merged into the weights of the transformers folder `base`, or into those of the recipe's seed.

    Host memory holds the model once, in fp32; where adapters are merged also in the type that it trained in.

    Raises:
        ValueError: the checkpoint is of another model or beside other weights, or cannot be read.
    """
    built = model.build(recipe.model, attention="eager")
    module = built.module
    weights = _merged(checkpoint, recipe, built, base) if recipe.adapter_rank else _stored(checkpoint, module)
    for name, weight in weights:
        path, _, attribute = name.rpartition(".")
        parameter = torch.nn.Parameter(weight.to(DTYPES[dtype]), requires_grad=False)
        setattr(module.get_submodule(path), attribute, parameter)
    module.tie_weights()
    module.config.dtype = DTYPES[dtype]
    module.config.use_cache = True
    module.save_pretrained(out)


def _stored(checkpoint: Path, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    with TensorReader(checkpoint, read_manifest(checkpoint).contents) as reader:
        for name, parameter in list(module.named_parameters()):
            yield name, _read(reader, name, tuple(parameter.shape))


def _read(reader: TensorReader, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    weight = torch.empty(shape, dtype=torch.float32)
    reader.read(f"{WEIGHT}/{name}", shape, [TensorPart(offsets=(0,) * len(shape), tensor=weight)])
    return weight


def _merged(checkpoint: Path, recipe: Recipe, built: model.Model, base: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the weights of the model with the checkpoint's adapters added to them."""
    weights = {name: _base_weight(recipe, built, name, parameter, base) for parameter, name in built.names.items()}
    manifest = read_manifest(checkpoint)
    check_base(
        manifest,
        checkpoint,
        base_digest({f"{FROZEN}/{name}": whole_tensor(weight) for name, weight in weights.items()}),
    )
    adapted = {f"{block}.{path}": sizes for block in built.block_names for path, sizes in recipe.adapted_layers.items()}
    with TensorReader(checkpoint, manifest.contents) as reader:
        for name in list(weights):
            weight = weights.pop(name).float()
            path = name.removesuffix(".weight")
            if path in adapted and path != name:
                outputs, inputs = adapted[path]
                down = _read(reader, f"{path}.{DOWN}.weight", (recipe.adapter_rank, inputs))
                up = _read(reader, f"{path}.{UP}.weight", (outputs, recipe.adapter_rank))
                added = recipe.lora_scale * up @ down
                weight += added.t() if _is_transposed(built, path) else added
            yield name, weight


def _is_transposed(built: model.Model, path: str) -> bool:
    return isinstance(built.module.get_submodule(path), Conv1D)


def _base_weight(
    recipe: Recipe, built: model.Model, name: str, parameter: torch.nn.Parameter, base: str
) -> torch.Tensor:
    """Returns a weight that did not train, in the type that it was stored in."""
    shape = tuple(parameter.shape)
    if base:
        files = WeightFiles(Path(base))
        stored = files.find(name, built.module.base_model_prefix, recipe.model.architecture)
        files.check_tensor(stored, name, shape)
        weight = files.read(stored, (0,) * len(shape), shape)
    else:
        std, start = recipe.model.init_std, recipe.model.norm_start
        weight = draw(name, parameter.shape, seed=recipe.seed, std=std, device=torch.device("cpu"), norm_start=start)
    return weight.to(model_dtype(recipe))


@import_stubs.imports(UNUSED)
def export_adapters(checkpoint: Path, recipe: Recipe, out: Path, *, dtype: str = "fp32", base: str = "") -> None:
    """Writes the adapters of `checkpoint` into the folder `out` as peft's files: `PeftModel.from_pretrained` adds them
    to a model of the weights `base`.

    Raises:
        ValueError: the checkpoint is of another recipe, or cannot be read.
    """
    built = model.build(recipe.model, attention="eager")
    tensors: dict[str, torch.Tensor] = {}
    with TensorReader(checkpoint, read_manifest(checkpoint).contents) as reader:
        for block in built.block_names:
            for path, (outputs, inputs) in recipe.adapted_layers.items():
                for layer, shape in ((DOWN, (recipe.adapter_rank, inputs)), (UP, (outputs, recipe.adapter_rank))):
                    name = f"{block}.{path}.{layer}.weight"
                    tensors[f"base_model.model.{name}"] = _read(reader, name, shape).to(DTYPES[dtype])
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    settings: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or None,
        "r": recipe.adapter_rank,
        "lora_alpha": recipe.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(recipe.adapted_layers),
        "fan_in_fan_out": _is_transposed(built, f"{built.block_names[0]}.{next(iter(recipe.adapted_layers))}"),
        "inference_mode": True,
    }
    (out / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def write_tokenizer(recipe: Recipe, out: Path) -> bool:
    """Writes the tokenizer of the recipe's data into the folder `out`; returns whether one is known: that which
    `platform.prepare` used, or one that has the bytes of a text for its ids.
    """
    folder = Path(recipe.data)
    index = read_index(folder) if folder.is_dir() else None
    if index is not None and (folder / TOKENIZER).is_dir():
        shutil.copytree(folder / TOKENIZER, out, dirs_exist_ok=True)
        return True
    if recipe.data != INCLUDED and (index is None or index.tokenizer != "bytes"):
        return False
    _byte_tokenizer().save_pretrained(out)
    return True


@import_stubs.imports(UNUSED)
def _byte_tokenizer() -> Any:
    """Returns a tokenizer whose ids are the bytes of UTF-8."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers

    # The characters by which byte-level tokenizers name bytes (openai/gpt-2's `bytes_to_unicode`): printable Latin-1
    # bytes their own, the others those from 256 on.
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}
    model = models.BPE(vocab={name: byte for byte, name in names.items()}, merges=[])
    tokenizer: Any = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


@import_stubs.imports(UNUSED)
def write_config(spec: ModelSpec, out: Path) -> None:
    """Writes the `config.json` of the model, without dropout, into the folder `out`."""
    model.build(spec, attention="eager").module.config.save_pretrained(out)
