"""Changes initial weights so that every part of a model affects its gradients, and restores them afterwards."""

import math

import torch

from trainers.distributed.state import FROZEN, WEIGHT, Counters, StateTensor
from trainers.engines.stepper import HasTrainingState
from trainers.models import nf4
from trainers.models.weights import normal
from trainers.spec.adapters import first_deviation, is_adapter
from trainers.spec.architectures import architecture_of
from trainers.spec.nf4 import FACTORS, SCALES, is_quantised
from trainers.spec.recipe import Recipe

SCORE_DEVIATION = 3.0
"""Standard deviation of attention scores. With the small scores of initial weights attention averages over all keys,
which hides faults in queries, keys, positions and scores.
"""
_NORM_DEVIATION = 0.1
_MANTISSA_BITS = {torch.float32: 23, torch.bfloat16: 7}
_INTEGERS = {4: torch.int32, 2: torch.int16}
READ_BITS: dict[str, int] = {"tf32": 10, "fp16": 10, "bf16": 7, "fp8_tensorwise": 7, "fp8_rowwise": 7}
"""Number of a weight's mantissa bits that products of a precision read; FP8 layers read `_FLOAT8_BITS`."""
_FLOAT8_BITS = 3


def sharpen(engine: HasTrainingState, recipe: Recipe, *, undo: bool = False) -> None:
    """Scales queries and keys so that scores spread, and moves norms, biases and the second layers of adapters away
    from ones and zeros, which hide some faults. With `undo` restores them and clears the optimizer's states. A
    collective, before a first step.

    A query or key of a normed input has a deviation of init_std * sqrt(hidden_size); a score has the product of both,
    times sqrt(head_dim) and the factor of scores. Norms of queries and keys replace these deviations with the norm's
    weight.
    """
    model = recipe.model
    reach = model.init_std * math.sqrt(model.hidden_size)  # deviation of a layer's output for a normed input
    family = architecture_of(model.architecture)
    attention = [path for path, cutting in family.tensor_parallel.items() if cutting == "colwise"]
    attention = [f".{path}." for path in attention if path.startswith(f"{family.attention_path}.")]
    parts = ("weight", FACTORS) if family.query_key_norm == "none" else ()
    scaled = tuple(path + part for path in attention for part in parts)
    deviation = model.init_std**2 * model.hidden_size * model.score_factor * math.sqrt(model.head_dim)
    factor = math.sqrt(SCORE_DEVIATION / deviation)
    sign = -1.0 if undo else 1.0
    for key, tensor in engine.training_state().items():
        kind, _, name = key.partition("/")
        if kind not in (WEIGHT, FROZEN):
            for part in tensor.parts if undo else ():
                part.tensor.zero_()
        elif is_adapter(name):
            # With zeros, the adapter's other layer has no gradient. This noise makes the adapter's output about as
            # large as its layer's.
            if not first_deviation(name, tensor.shape[1]):
                std = math.sqrt(3 / recipe.adapter_rank) * reach / recipe.lora_scale
                _add(_noise(name, tensor.shape, recipe.seed, std), tensor, sign)
        elif is_quantised(name):
            for part in tensor.parts if name.endswith(scaled) else ():
                nf4.multiply(part.tensor, factor**sign, offset=part.offsets[0], length=tensor.shape[0])
        elif len(tensor.shape) > 1 and name.endswith("bias"):  # stacked biases of experts
            _add(_noise(name, tensor.shape, recipe.seed, model.init_std), tensor, sign)
        elif len(tensor.shape) > 1:
            for part in tensor.parts if name.endswith(scaled) else ():
                part.tensor.mul_(factor**sign)
        else:
            is_bias = name.endswith("bias")
            normed = family.query_key_norm != "none" and f".{family.attention_path}." in name and not is_bias
            noise = _noise(name, tensor.shape, recipe.seed, model.init_std if is_bias else _NORM_DEVIATION)
            noise += math.sqrt(SCORE_DEVIATION) - 1 if normed else 0.0
            _add(noise, tensor, sign)
    counters = engine.counters()
    engine.adopt(Counters(optimizer_step=0, loss_scale=counters.loss_scale, loss_scale_steps=counters.loss_scale_steps))


def round_otherwise(engine: HasTrainingState, recipe: Recipe) -> None:
    """Flips the last bit that the recipe's products read in every weight, the size of a rounding error. In NF4 weights
    flips the last bit of each scale, a similar change. A second call restores all weights exactly. A collective, before
    a step.
    """
    blocks = f"{architecture_of(recipe.model.architecture).blocks}."
    for key, tensor in engine.training_state().items():
        kind, _, name = key.partition("/")
        if is_quantised(name):
            for part in tensor.parts if name.endswith(SCALES) else ():
                part.tensor.bitwise_xor_(1)
            continue
        is_float8 = bool(recipe.float8_scaling) and name.startswith(blocks) and len(tensor.shape) > 1
        read_bits = _FLOAT8_BITS if is_float8 else READ_BITS[recipe.compute_precision]
        for part in tensor.parts if kind in (WEIGHT, FROZEN) else ():
            kept_bits = _MANTISSA_BITS[part.tensor.dtype]
            bits = part.tensor.view(_INTEGERS[part.tensor.element_size()])
            bits.bitwise_xor_(1 << (kept_bits - min(kept_bits, read_bits)))
    engine.adopt(engine.counters())


def _noise(name: str, shape: tuple[int, ...], seed: int, std: float) -> torch.Tensor:
    """Returns noise that depends on seed and name alone, the same on every kind of device."""
    return normal(f"gate/{name}", torch.Size(shape), seed=seed, std=std, device=torch.device("cpu"))


def _add(noise: torch.Tensor, tensor: StateTensor, sign: float) -> None:
    for part in tensor.parts:
        box = tuple(slice(first, first + size) for first, size in zip(part.offsets, part.tensor.shape, strict=True))
        part.tensor.add_(noise[box].to(part.tensor), alpha=sign)
