"""Weights at which everything in a model weighs on its gradients, made from the first ones and taken back again."""

import math

import torch

from trainers.distributed.state import WEIGHT, Counters, TensorPart
from trainers.engines.base import Engine
from trainers.models.weights import draw
from trainers.spec.architectures import architecture_of
from trainers.spec.recipe import Recipe

SCORE_DEVIATION = 3.0
"""Deviation of attention scores: with the first weights' small ones attention is a mean over all keys, and what is
wrong with queries, keys, positions or scores hardly shows."""
_NORM_DEVIATION = 0.1


def sharpen(engine: Engine, recipe: Recipe, *, undo: bool = False) -> None:
    """Scales queries and keys so that scores spread, and moves norms and biases off ones and zeros, where some faults
    do not show; with `undo` takes this back and clears the optimizer's states. A collective, before a first step.

    A query or a key of a normed input has a deviation of `init_std` times the root of the width. Under norms of queries
    and keys it has the norm's weight instead.
    """
    model = recipe.model
    family = architecture_of(model.architecture)
    attention = [path for path, cutting in family.tensor_parallel.items() if cutting == "colwise"]
    attention = [f".{path}.weight" for path in attention if path.startswith(f"{family.attention_path}.")]
    deviation = model.init_std**2 * model.hidden_size
    factor = math.sqrt(SCORE_DEVIATION / deviation)
    sign = -1.0 if undo else 1.0
    for key, tensor in engine.training_state().items():
        kind, _, name = key.partition("/")
        if kind != WEIGHT:
            for part in tensor.parts if undo else ():
                part.tensor.zero_()
        elif len(tensor.shape) > 1:
            if name.endswith(tuple(attention)) and family.query_key_norm == "none":
                for part in tensor.parts:
                    part.tensor.mul_(factor**sign)
        else:
            is_bias = name.endswith("bias")
            normed = family.query_key_norm != "none" and f".{family.attention_path}." in name and not is_bias
            noise = _noise(name, tensor.shape, recipe.seed, model.init_std if is_bias else _NORM_DEVIATION)
            noise += math.sqrt(SCORE_DEVIATION) - 1 if normed else 0.0
            for part in tensor.parts:
                part.tensor.add_(_box(noise, part).to(part.tensor), alpha=sign)
    counters = engine.counters()
    engine.adopt(Counters(optimizer_step=0, loss_scale=counters.loss_scale, loss_scale_steps=counters.loss_scale_steps))


def _noise(name: str, shape: tuple[int, ...], seed: int, std: float) -> torch.Tensor:
    """Returns a vector that is a function of seed and name, the same on every kind of device."""
    drawn = draw(f"gate/{name}", torch.Size((*shape, 1)), seed=seed, std=std, device=torch.device("cpu"))
    return drawn.squeeze(-1)


def _box(vector: torch.Tensor, part: TensorPart) -> torch.Tensor:
    (first,), (size,) = part.offsets, part.tensor.shape
    return vector[first : first + size]
