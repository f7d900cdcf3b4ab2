"""Initial weights as a function of (seed, parameter name), so that every engine and degree starts from the same model.

A parameter is drawn whole, in fp32, on the device, then cast or sliced by the engine; only one unit of the model (a
block, or everything outside the blocks) is ever whole beside the shards. CPU and GPU generators differ, so models are
equal only among ranks with the same kind of device.
"""

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import nn

from trainers.models import nf4
from trainers.spec.adapters import first_deviation, is_adapter


def ones(_name: str) -> float:
    """Returns 1.0, with which most vectors start."""
    return 1.0


def draw(
    name: str,
    shape: torch.Size,
    *,
    seed: int,
    std: float,
    device: torch.device,
    vector_start: Callable[[str], float] = ones,
) -> torch.Tensor:
    """Returns the fp32 tensor of the parameter that has `name` in the plain transformers model.

    Matrices, tables and attention sinks are normal with deviation `std`, biases are zeros; other vectors (norm weights,
    learned numbers) start at `vector_start` of their names.
    """
    if name.endswith("bias"):
        return torch.zeros(shape, dtype=torch.float32, device=device)
    if len(shape) >= 2 or name.endswith("sinks"):
        return normal(name, shape, seed=seed, std=std, device=device)
    return torch.full(shape, vector_start(name), dtype=torch.float32, device=device)


def normal(name: str, shape: torch.Size, *, seed: int, std: float, device: torch.device) -> torch.Tensor:
    """Returns an fp32 tensor of normal values with deviation `std`, determined by seed and name."""
    generator = torch.Generator(device).manual_seed(_seed_of(seed, name))
    return torch.empty(shape, dtype=torch.float32, device=device).normal_(0.0, std, generator=generator)


def materialise(
    module: nn.Module,
    *,
    names: Mapping[nn.Parameter, str],
    seed: int,
    std: float,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    frozen: torch.dtype | None = None,
    cut: Callable[[str, torch.Tensor], torch.Tensor] | None = None,
    vector_start: Callable[[str], float] = ones,
) -> None:
    """Replaces every meta parameter in `module` by a drawn one on `device`, and moves the buffers there.

    `names` maps meta parameters to their names. `cut` returns this rank's part of a parameter by name. Parameters
    without a gradient have the type `frozen`, if given.
    """
    replacements: dict[nn.Parameter, nn.Parameter] = {}  # by meta parameter, so that tied parameters stay tied
    for child in module.modules():
        for key, parameter in list(child.named_parameters(recurse=False, remove_duplicate=False)):
            if not parameter.is_meta:
                continue
            if parameter not in replacements:
                name, shape = names[parameter], parameter.shape
                deviation = first_deviation(name, shape[1]) if is_adapter(name) else std
                value = draw(name, shape, seed=seed, std=deviation, device=device, vector_start=vector_start)
                value = value if cut is None else cut(names[parameter], value)
                stored = dtype if frozen is None or parameter.requires_grad else frozen
                replacements[parameter] = nn.Parameter(value.to(stored), requires_grad=parameter.requires_grad)
                del value
            setattr(child, key, replacements[parameter])
            # Quantised at once, so that no model is ever whole in another type.
            if key == "weight" and nf4.awaits_quantising(child):
                del replacements[parameter]
                nf4.quantise(child)
        for key, buffer in list(child.named_buffers(recurse=False, remove_duplicate=False)):
            setattr(child, key, buffer.to(device))


def _seed_of(seed: int, name: str) -> int:
    """Returns 63 bits determined by both arguments; `hash` would change between processes."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1
