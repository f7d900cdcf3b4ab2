"""A checkpoint as a transformers folder: `from_pretrained` gives the model that was trained."""

import sys
import warnings
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as read_sharded

from trainers.distributed.state import WEIGHT
from trainers.spec import engines
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.startup import import_stubs

_OF_ENGINES = tuple(package for rules in engines.registered() for package in rules.packages)
UNUSED = () if "transformers" in sys.modules else (*import_stubs.HIDDEN, *_OF_ENGINES)
"""Modules that transformers would import, and that warn of what they do not find. Where it was imported before it
relies on those that it saw.
"""

with import_stubs.imports(UNUSED):
    from trainers.models import model

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@import_stubs.imports(UNUSED)
def export(checkpoint: Path, recipe: Recipe, out: Path, *, dtype: str = "fp32") -> None:
    """Writes the weights of `checkpoint` with the model's configuration into the folder `out`, in one process.

    Host memory holds the model once, in fp32.
    """
    module = model.build(recipe.model, attention="eager").module
    weights = {
        f"{WEIGHT}/{name}": torch.empty(parameter.shape, dtype=torch.float32)
        for name, parameter in module.named_parameters()
    }
    with warnings.catch_warnings():  # torch warns of the one process that is asked for
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        read_sharded(weights, storage_reader=FileSystemReader(checkpoint), no_dist=True)
    for key, weight in weights.items():
        path, _, name = key.removeprefix(f"{WEIGHT}/").rpartition(".")
        setattr(module.get_submodule(path), name, torch.nn.Parameter(weight.to(DTYPES[dtype]), requires_grad=False))
    module.tie_weights()
    module.config.dtype = DTYPES[dtype]
    module.config.use_cache = True
    module.save_pretrained(out)


@import_stubs.imports(UNUSED)
def write_config(spec: ModelSpec, out: Path) -> None:
    """Writes the `config.json` of the model, without dropout, into the folder `out`."""
    model.build(spec, attention="eager").module.config.save_pretrained(out)
