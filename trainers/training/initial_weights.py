"""Initial weights from a transformers folder: each rank reads its own parts; nothing is downloaded."""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from trainers.distributed.state import FROZEN, WEIGHT, Counters, StateTensor
from trainers.engines.stepper import Engine
from trainers.models import nf4
from trainers.records.plain_files import read_json
from trainers.spec.adapters import is_adapter
from trainers.spec.architectures import architecture_of
from trainers.spec.architectures.with_experts import WithExperts
from trainers.spec.codec import shortened
from trainers.spec.errors import InputError
from trainers.spec.nf4 import CODES, is_quantised

if TYPE_CHECKING:  # a worker imports transformers by `trainers.startup.import_stubs`
    from transformers import PreTrainedModel

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_DTYPES = ("F32", "BF16", "F16")
"""Types whose numbers are the weights themselves; types with fewer bits need factors stored elsewhere."""
_ROTARY = r"rotary_emb\.inv_freq$"
"""Frequencies in each block of older files; they follow from the configuration."""
_MOST_NAMED = 3
_BLOCK_ROWS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """The stored tensors that make up one parameter."""

    names: tuple[tuple[str, ...], ...]
    """Tensors of each expert, concatenated along rows; for other parameters a single tensor."""
    is_stacked: bool = False
    """Whether the parameter has the experts as its first dimension."""


class WeightFiles:
    """The safetensors files of a transformers folder.

    Raises:
        ValueError: the folder has none, or its index leads elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = folder / _INDEX
        if index.is_file():
            self._file_of = _placed(index)
        elif (folder / _SINGLE).is_file():
            with _opened(folder / _SINGLE) as file:
                self._file_of = dict.fromkeys(file.keys(), _SINGLE)
        else:
            raise ValueError(f"{folder} holds neither {_SINGLE} nor {_INDEX}: save the model there as safetensors")

    def find(self, name: str, base: str, architecture: str) -> Stored:
        """Returns the tensors of a parameter: under its own name, without the model's `base` prefix as in files of the
        bare model, or in another form that files of `architecture` have, such as one tensor per expert.

        Raises:
            ValueError: the folder has no such parameter.
        """
        family = architecture_of(architecture)
        for candidate in (name, name.removeprefix(f"{base}."), family.stored_as.get(name, "")):
            if candidate in self._file_of:
                return Stored(names=((candidate,),))
        for end, parts in family.stored_in_parts.items():
            if name.endswith(f".{end}"):
                first = name.removesuffix(end)
                for prefix in (first, first.removeprefix(f"{base}.")):
                    if names := tuple(self._experts([prefix + part for part in parts])):
                        return Stored(names=names, is_stacked="{expert}" in parts[0])
        raise ValueError(f"{self._folder} has no weight {name}: it is of another model")

    def _experts(self, parts: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yields the tensor names of each expert; for a parameter without experts its names, once."""
        for expert in itertools.count():
            names = tuple(part.format(expert=expert) for part in parts)
            if not self._file_of.keys() >= set(names):
                return
            yield names
            if names == tuple(parts):
                return

    def check_tensor(self, stored: Stored, name: str, shape: tuple[int, ...]) -> None:
        """Checks that stored tensors can be the parameter `name` of that shape.

        Raises:
            ValueError: they have another shape, or a type whose numbers are not weights.
        """
        shapes = set[tuple[int, ...]]()
        for names in stored.names:
            of_expert = [self._shape(tensor_name, name) for tensor_name in names]
            shapes.add((sum(rows for rows, *_ in of_expert), *of_expert[0][1:]) if stored.is_stacked else of_expert[0])
        held = [len(stored.names), *min(shapes)] if stored.is_stacked else list(min(shapes))
        if len(shapes) > 1 or tuple(held) != shape:
            raise ValueError(f"{name} has shape {held} in {self._folder}, {list(shape)} in the recipe's model")

    def _shape(self, stored: str, name: str) -> tuple[int, ...]:
        with _opened(self._folder / self._file_of[stored]) as file:
            tensor = file.get_slice(stored)
            shape, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
        if dtype not in _DTYPES:
            raise ValueError(
                f"{name} is stored as {dtype} in {self._folder}: give a folder with fp32, bf16 or fp16 weights"
            )
        return shape

    def check(self, model: "PreTrainedModel") -> None:
        """Checks that the folder holds exactly the model's parameters, besides its constants, and that its routers are
        not all zeros. Tensors that transformers ignores too, and a second copy of a tied table, do not count.

        Raises:
            ValueError: tensors are missing, surplus or of wrong shape, or a router is all zeros; the first ones are
                named.
        """
        base, kind, used = model.base_model_prefix, model.config.model_type, dict[torch.nn.Parameter, Stored]()
        unused = self._names()
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if parameter not in used:
                used[parameter] = self.find(name, base, kind)
                self.check_tensor(used[parameter], name, tuple(parameter.shape))
                self._check_router(used[parameter], name, kind)
            elif {name, name.removeprefix(f"{base}.")} & unused:
                ((copy,),) = self.find(name, base, kind).names
                ((first_copy,),) = used[parameter].names
                if self._are_equal(copy, first_copy):
                    unused.discard(copy)
        kept = model.state_dict().keys()
        for name, constant in model.named_buffers():
            for stored in {name, name.removeprefix(f"{base}.")} & unused & self._file_of.keys() if name in kept else ():
                self._check_constant(stored, constant)
                unused.discard(stored)
        tensors = {name for stored in used.values() for names in stored.names for name in names}
        left_out = (*(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()), _ROTARY)
        named = sorted(name for name in unused - tensors if not any(re.search(pattern, name) for pattern in left_out))
        if named:
            more = f" and {len(named) - _MOST_NAMED:,} more" if len(named) > _MOST_NAMED else ""
            raise ValueError(
                f"{self._folder} has tensors that the recipe's model does not use: {', '.join(named[:_MOST_NAMED])}"
                f"{more}"
            )

    def _check_constant(self, name: str, constant: torch.Tensor) -> None:
        """Checks that a stored tensor that never trains has the values with which the model computes.

        Raises:
            ValueError: it has others.
        """
        with _opened(self._folder / self._file_of[name]) as file:
            stored = file.get_tensor(name)
        if not torch.equal(stored, constant.to(stored.dtype)):
            raise ValueError(
                f"{name} is {shortened(stored.tolist())} in {self._folder}, and {shortened(constant.tolist())} in the"
                " recipe's model, which computes with no other: give a folder with that value"
            )

    def _check_router(self, stored: Stored, name: str, architecture: str) -> None:
        """Checks that the parameter `name`, if it is a router's, is not all zeros, which would send every token the
        same way.

        Raises:
            ValueError: it is all zeros.
        """
        family = architecture_of(architecture)
        if not isinstance(family, WithExperts) or not name.endswith(f".{family.router}.weight"):
            return
        ((tensor,),) = stored.names
        if not self._slice(tensor, (slice(None),)).any():
            raise ValueError(
                f"the router {name} is all zeros in {self._folder}, and sends every token to the same experts: give a"
                " folder of a model that was initialized or trained"
            )

    def _names(self) -> set[str]:
        """Returns the names of all tensors in the files, including tensors that the index omits."""
        names = set[str]()
        for file_name in sorted(set(self._file_of.values())):
            with _opened(self._folder / file_name) as file:
                names |= set(file.keys())
        return names

    def _are_equal(self, stored: str, other: str) -> bool:
        """Returns whether two stored tensors have the same values; compares some rows at a time, because tables are
        large.
        """
        with (
            _opened(self._folder / self._file_of[stored]) as file,
            _opened(self._folder / self._file_of[other]) as other_file,
        ):
            first, second = file.get_slice(stored), other_file.get_slice(other)
            if first.get_shape() != second.get_shape():
                return False
            rows = range(0, first.get_shape()[0], _BLOCK_ROWS)
            return all(torch.equal(first[i : i + _BLOCK_ROWS], second[i : i + _BLOCK_ROWS]) for i in rows)

    def read(self, stored: Stored, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        """Returns a box of a parameter."""
        box = tuple(slice(first, first + size) for first, size in zip(offsets, sizes, strict=True))
        if not stored.is_stacked:
            ((name,),) = stored.names
            return self._slice(name, box)
        everything = (slice(None),)
        experts = [torch.cat([self._slice(name, everything) for name in names]) for names in stored.names[box[0]]]
        return torch.stack(experts)[(slice(None), *box[1:])]

    def _slice(self, stored: str, box: tuple[slice, ...]) -> torch.Tensor:
        with _opened(self._folder / self._file_of[stored]) as file:
            return file.get_slice(stored)[box]


def _placed(index: Path) -> dict[str, str]:
    """Returns the file of each tensor, as stated by an index.

    Raises:
        InputError: the index states none, or one in another folder.
    """
    placed: Any = read_json(index, links=True).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):  # type: ignore[reportUnknownVariableType]
        raise InputError(f'{index} must hold an object "weight_map" with the names of files')
    if any(Path(name).name != name for name in placed.values()):  # type: ignore[reportUnknownVariableType]
        raise InputError(f"{index} names files of other folders: save the model anew")
    return placed  # type: ignore[reportUnknownVariableType]


def load(engine: Engine, folder: Path) -> None:
    """Fills the engine's weights, except adapters, from the folder, each rank its own parts; a collective. NF4 weights
    are read and quantised whole, one at a time, because the mean of their scales is over the whole weight.

    Raises:
        ValueError: the folder has another model, or cannot be read.
    """
    files, model = WeightFiles(folder), engine.models[0]
    state = engine.training_state()
    for key, tensor in state.items():
        kind, _, name = key.partition("/")
        if kind not in (WEIGHT, FROZEN) or is_adapter(name):
            continue
        if is_quantised(name):
            if name.endswith(f".{CODES}"):
                _quantise(files, engine, state, name.removesuffix(f".{CODES}"))
            continue
        stored = files.find(name, model.module.base_model_prefix, model.spec.architecture)
        files.check_tensor(stored, name, tensor.shape)
        for part in tensor.parts:
            part.tensor.copy_(files.read(stored, part.offsets, tuple(part.tensor.shape)))
    engine.adopt(Counters(optimizer_step=0))


def _quantise(files: WeightFiles, engine: Engine, state: Mapping[str, StateTensor], path: str) -> None:
    """Fills the NF4 parts of the weight of the layer at `path`."""
    model, (rows, half) = engine.models[0], state[f"{FROZEN}/{path}.{CODES}"].shape
    name, shape = f"{path}.weight", (rows, 2 * half)
    stored = files.find(name, model.module.base_model_prefix, model.spec.architecture)
    files.check_tensor(stored, name, shape)
    frozen = (tensor for key, tensor in state.items() if key.startswith(f"{FROZEN}/") and not is_quantised(key))
    like = next(part.tensor for tensor in frozen for part in tensor.parts)  # has the type of the products
    for part_name, values in nf4.quantised_parts(path, files.read(stored, (0, 0), shape).to(like)):
        for part in state[f"{FROZEN}/{part_name}"].parts:
            box = zip(part.offsets, part.tensor.shape, strict=True)
            part.tensor.copy_(values[tuple(slice(first, first + size) for first, size in box)])


@contextlib.contextmanager
def _opened(path: Path) -> Generator[Any]:
    """Opens a file of tensors.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from error
