"""The weights of a transformers folder as the first ones: each rank reads its own parts, nothing is downloaded."""

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from trainers.distributed.state import WEIGHT, Counters
from trainers.engines.base import Engine
from trainers.records.plain_files import read_json
from trainers.spec.errors import InputError

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


class WeightFiles:
    """The safetensors files of a transformers folder.

    Raises:
        ValueError: the folder has none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = folder / _INDEX
        if index.is_file():
            self._file_of: dict[str, str] = _files_of(index)
        elif (folder / _SINGLE).is_file():
            with _opened(folder / _SINGLE) as file:
                self._file_of = dict.fromkeys(file.keys(), _SINGLE)
        else:
            raise ValueError(f"{folder} holds neither {_SINGLE} nor {_INDEX}: save the model there as safetensors")

    def stored_name(self, name: str, base: str) -> str:
        """Returns the file's name of a parameter, which leaves out the model's `base` prefix in files of the bare
        model.

        Raises:
            ValueError: the folder has no such parameter.
        """
        for candidate in (name, name.removeprefix(f"{base}.")):
            if candidate in self._file_of:
                return candidate
        raise ValueError(f"{self._folder} has no weight {name}: it is of another model")

    def shape(self, stored: str) -> tuple[int, ...]:
        """Returns the shape of a stored tensor."""
        with _opened(self._folder / self._file_of[stored]) as file:
            return tuple(file.get_slice(stored).get_shape())

    def read(self, stored: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        """Returns a box of a stored tensor."""
        with _opened(self._folder / self._file_of[stored]) as file:
            box = tuple(slice(first, first + size) for first, size in zip(offsets, sizes, strict=True))
            return file.get_slice(stored)[box]


def _files_of(index: Path) -> dict[str, str]:
    files: Any = read_json(index, links=True).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):  # type: ignore[reportUnknownVariableType]
        raise InputError(f'{index} must hold an object "weight_map" with the names of files')
    return files  # type: ignore[reportUnknownVariableType]


def load(engine: Engine, folder: Path) -> None:
    """Fills the engine's master weights from the folder, each rank its own parts; a collective.

    Raises:
        ValueError: the folder holds another model.
    """
    files, base = WeightFiles(folder), engine.models[0].module.base_model_prefix
    for key, tensor in engine.training_state().items():
        kind, _, name = key.partition("/")
        if kind != WEIGHT:
            continue
        stored = files.stored_name(name, base)
        if files.shape(stored) != tensor.shape:
            raise ValueError(
                f"{name} has shape {list(files.shape(stored))} in {folder}, {list(tensor.shape)} in the recipe's model"
            )
        for part in tensor.parts:
            part.tensor.copy_(files.read(stored, part.offsets, tuple(part.tensor.shape)))
    engine.adopt(Counters(optimizer_step=0))


@contextlib.contextmanager
def _opened(path: Path) -> Generator[Any]:
    with safe_open(path, framework="pt") as file:
        yield file
