"""Low-rank adapters beside frozen linear layers (LoRA, arXiv 2106.09685): their layers and names. Imports no torch.

Parameters have peft's names: for the layer `q_proj`, `q_proj.lora_A.weight` [rank, inputs] and `q_proj.lora_B.weight`
[outputs, rank].
"""

from collections.abc import Mapping

from trainers.spec.architectures import architecture_of
from trainers.spec.model_sizes import ModelSizes
from trainers.spec.nf4 import BLOCK

DOWN, UP = "lora_A", "lora_B"
"""Names of an adapter's two layers: the first maps a layer's inputs to the rank, the second the rank to its outputs."""
_SEPARATOR = "+"
ALL_LINEAR = "all-linear"
"""Value of `Recipe.lora_targets` that selects every linear layer of the blocks."""


def is_adapter(name: str) -> bool:
    return name.endswith((f".{DOWN}.weight", f".{UP}.weight"))


def first_deviation(name: str, inputs: int) -> float:
    """Returns the standard deviation of an adapter weight's initial values.

    The second layer (lora_B) starts at 0, so an adapter adds nothing at first. The first (lora_A) starts as in peft,
    uniform in +-1/sqrt(inputs).
    """
    return 0.0 if name.endswith(f".{UP}.weight") else (3 * inputs) ** -0.5


def quantised_layers(model: ModelSizes) -> Mapping[str, tuple[int, int]]:
    """Returns (outputs, inputs) of each linear layer of a block, by its path in the block; all their weights can be in
    NF4.

    Raises:
        ValueError: the block has experts, or a layer's size is not a multiple of `BLOCK`.
    """
    if model.num_experts:
        raise ValueError(
            f"experts of {model.name} are stacks of matrices, which are not held in NF4: choose an adapter lora_..."
        )
    everything = architecture_of(model.architecture).linear_layers(model)
    for path, sizes in everything.items():
        if any(size % BLOCK for size in sizes):
            raise ValueError(
                f"weights in NF4 are scaled by blocks of {BLOCK}, {path} of {model.name} is {sizes[0]} x {sizes[1]}:"
                " choose an adapter lora_..., whose frozen weights have the type of products"
            )
    return everything


def layers(model: ModelSizes, targets: str) -> Mapping[str, tuple[int, int]]:
    """Returns (outputs, inputs) of the linear layers of a block that `targets` selects, by their paths in the block.

    `targets` is `ALL_LINEAR`, or names joined by "+"; a name selects each path that equals it or ends with it.

    Raises:
        ValueError: a name matches no layer, or `ALL_LINEAR` is given for a block with experts, which cannot have
            adapters.
    """
    everything = architecture_of(model.architecture).linear_layers(model)
    names = ", ".join(dict.fromkeys(path.rpartition(".")[2] for path in everything))
    if targets == ALL_LINEAR:
        if model.num_experts:
            raise ValueError(
                f"experts of {model.name} are stacks of matrices, which have no adapters: set lora_targets to some of"
                f" its linear layers, {names}"
            )
        return everything
    chosen: set[str] = set()
    for name in targets.split(_SEPARATOR):
        matched = {path for path in everything if name and f".{path}".endswith(f".{name}")}
        if not matched:
            raise ValueError(
                f"lora_targets names no linear layer of {model.name}, got {name!r}: choose of {names}, joined by"
                f" {_SEPARATOR}, or {ALL_LINEAR}"
            )
        chosen |= matched
    return {path: sizes for path, sizes in everything.items() if path in chosen}
