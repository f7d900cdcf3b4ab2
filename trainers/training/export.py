"""Writes a checkpoint as a transformers folder: `from_pretrained` loads the trained model, or peft its adapters."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from trainers.data.index import TOKENIZER, read_index
from trainers.distributed.state import WEIGHT
from trainers.records.checkpoints import read_manifest
from trainers.records.plain_files import read_plain, refuse_links
from trainers.spec import engines
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import INCLUDED
from trainers.startup import import_stubs
from trainers.training.checkpoint_reading import TensorReader

_OF_ENGINES = tuple(package for rules in engines.registered() for package in rules.packages)
UNUSED = () if "transformers" in sys.modules else (*import_stubs.HIDDEN, *_OF_ENGINES)
"""Modules that transformers would import although unneeded, and that warn about missing parts. If transformers was
imported before, it relies on the modules that it found.
"""

with import_stubs.imports(UNUSED):
    from trainers.models import model
    from trainers.training import adapter_export

_CARRIED = re.compile(
    r"generation_config\.json|chat_template\..+|tokenizer.*|special_tokens_map\.json|added_tokens\.json|vocab\..+"
    r"|merges\.txt"
)
"""Files of a transformers folder for its tokenizer, its chat template and its generation settings."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@import_stubs.imports(UNUSED)
def export(checkpoint: Path, recipe: Recipe, out: Path, *, dtype: str = "fp32", base: str = "") -> None:
    """Writes the weights of `checkpoint` with the model's configuration into the folder `out`, in one process. Adapters
    are merged into the weights of the transformers folder `base`, or of the recipe's seed. Host memory holds the model
    once in fp32, and for merging also in the type in which it was trained.

    Raises:
        ValueError: the checkpoint belongs to another model or to other frozen weights, or cannot be read.
    """
    if recipe.balance_loss == "bias":
        raise ValueError(
            f"the biases that balance the routers of {recipe.model.name} are part of what it computes, and"
            f" transformers' {recipe.model.architecture} has none: trainings with balance_loss aux or none are exported"
        )
    built = model.build(recipe.model, attention="eager")
    module = built.module
    merges = recipe.adapter_rank > 0
    weights = adapter_export.merged(checkpoint, recipe, built, base) if merges else _stored(checkpoint, module)
    for name, weight in weights:
        path, _, attribute = name.rpartition(".")
        parameter = torch.nn.Parameter(weight.to(DTYPES[dtype]), requires_grad=False)
        setattr(module.get_submodule(path), attribute, parameter)
    module.tie_weights()
    module.config.dtype = DTYPES[dtype]
    module.config.use_cache = True
    module.save_pretrained(out)


@import_stubs.imports(UNUSED)
def export_adapters(checkpoint: Path, recipe: Recipe, out: Path, *, dtype: str = "fp32", base: str = "") -> None:
    """Writes the adapters of `checkpoint` into the folder `out` as peft's files, for `PeftModel.from_pretrained` on a
    model with the weights `base`.

    Raises:
        ValueError: the checkpoint belongs to another recipe, or cannot be read.
    """
    built = model.build(recipe.model, attention="eager")
    adapter_export.write_files(checkpoint, recipe, built, out, dtype=DTYPES[dtype], base=base)


def _stored(checkpoint: Path, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    with TensorReader(checkpoint, read_manifest(checkpoint).contents) as reader:
        for name, parameter in list(module.named_parameters()):
            yield name, reader.tensor(f"{WEIGHT}/{name}", tuple(parameter.shape))


def write_tokenizer(recipe: Recipe, out: Path, *, initial_weights: str = "") -> bool:
    """Writes the tokenizer of the recipe's data, with its chat template, into the folder `out`; returns whether one is
    known.

    It is the tokenizer that `platform.prepare` used, a byte tokenizer if ids are bytes, or the one in the folder
    `initial_weights`, whose generation settings are copied in any case.

    Raises:
        ValueError: a file of these folders is a link to a place outside.
    """
    folder = Path(recipe.data)
    carried = [path for path in _files(initial_weights) if _CARRIED.fullmatch(path.name)]
    for path in carried:
        (out / path.name).write_bytes(_content(path))
    index = read_index(folder) if folder.is_dir() else None
    if index is not None and (folder / TOKENIZER).is_dir():
        refuse_links(folder / TOKENIZER)
        shutil.copytree(folder / TOKENIZER, out, dirs_exist_ok=True)
        return True
    if recipe.data == INCLUDED or (index is not None and index.tokenizer == "bytes"):
        _byte_tokenizer().save_pretrained(out)
        return True
    return any(path.name.startswith("tokenizer") for path in carried)


def _content(path: Path) -> bytes:
    """Returns the content of a file of a foreign folder. A link may lead within the hub's cache that contains the
    folder; other targets may be files that only this user can read.
    """
    folder, target = path.parent.resolve(), path.resolve()
    if not target.is_relative_to(folder.parents[1] if folder.parent.name == "snapshots" else folder):
        raise ValueError(
            f"{path} is a link to {target}, outside of its folder: put the file itself there, or remove it"
        )
    return read_plain(target)


def _files(folder: str) -> list[Path]:
    return sorted(Path(folder).iterdir()) if folder and Path(folder).is_dir() else []


@import_stubs.imports(UNUSED)
def _byte_tokenizer() -> Any:
    """Returns a tokenizer whose ids are the bytes of UTF-8."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers

    # Byte-level tokenizers name bytes by characters (openai/gpt-2's `bytes_to_unicode`): printable Latin-1 bytes by
    # themselves, other bytes by the characters from 256 on.
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
    """Writes the model's `config.json`, without dropout, into the folder `out`."""
    model.build(spec, attention="eager").module.config.save_pretrained(out)
