"""A checkpoint as a transformers folder: `from_pretrained` gives the model that was trained."""

import sys
from pathlib import Path

import torch

from trainers.distributed.state import WEIGHT, TensorPart
from trainers.records.checkpoints import read_manifest
from trainers.spec import engines
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.startup import import_stubs
from trainers.training.checkpoint_reading import TensorReader

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

    Raises:
        ValueError: the checkpoint is of another model, or cannot be read.
    """
    module = model.build(recipe.model, attention="eager").module
    with TensorReader(checkpoint, read_manifest(checkpoint).contents) as reader:
        for name, parameter in list(module.named_parameters()):
            shape = tuple(parameter.shape)
            weight = torch.empty(shape, dtype=torch.float32)
            reader.read(f"{WEIGHT}/{name}", shape, [TensorPart(offsets=(0,) * len(shape), tensor=weight)])
            path, _, attribute = name.rpartition(".")
            weight = torch.nn.Parameter(weight.to(DTYPES[dtype]), requires_grad=False)
            setattr(module.get_submodule(path), attribute, weight)
    module.tie_weights()
    module.config.dtype = DTYPES[dtype]
    module.config.use_cache = True
    module.save_pretrained(out)


@import_stubs.imports(UNUSED)
def write_config(spec: ModelSpec, out: Path) -> None:
    """Writes the `config.json` of the model, without dropout, into the folder `out`."""
    model.build(spec, attention="eager").module.config.save_pretrained(out)
