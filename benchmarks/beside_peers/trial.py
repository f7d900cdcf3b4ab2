"""The searched space, and the training function that times one of its points, shared by all peers."""

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any, cast

import search_spaces
from search_spaces.candidate import Candidate
from search_spaces.space import Space
from trainers.values.batch import BatchPoint

WARM_UP_STEPS = 2
TIMED_STEPS = 4
AXES = ("engine", "zero_stage", "compile", "loss", "checkpointing")

Choice = Mapping[str, str | int]


def space_of(name: str, changes: tuple[str, ...]) -> Space:
    """Returns the searched space; on machines without a GPU its miniature, on one device."""
    import torch

    space = search_spaces.load(name).with_changes(changes)
    if torch.cuda.is_available():
        return space
    small = space.miniature or space
    return dataclasses.replace(small, num_workers=1)


def candidates(space: Space) -> dict[tuple[str | int, ...], Candidate]:
    """Returns each valid layout on one device by its values of `AXES`."""
    return {tuple(getattr(each.layout, axis) for axis in AXES): each for each in space.candidates(1)[0]}


def values(space: Space) -> dict[str, list[str | int]]:
    """Returns the values of each axis that occur in valid layouts, and of `micro_batch`."""
    keys = list(candidates(space))
    axes: dict[str, list[str | int]] = {axis: sorted({key[i] for key in keys}) for i, axis in enumerate(AXES)}
    return {**axes, "micro_batch": list(space.micro_batches)}


def candidate_of(space: Space, choice: Choice) -> Candidate | None:
    """Returns the layout of a choice; None where no engine runs that combination."""
    return candidates(space).get(tuple(choice[axis] for axis in AXES))


def tokens_per_s(space: Space, choice: Choice) -> float:
    """Trains a few optimizer steps of the choice in this process, on one device, and times the last ones.

    Raises:
        ValueError: no engine runs that combination, or the micro-batch does not divide the global batch.
        torch.OutOfMemoryError: the choice does not fit.
    """
    import torch
    import torch.distributed as dist

    from trainers import engines
    from trainers.engines.step import Unmarked

    candidate = candidate_of(space, choice)
    if candidate is None:
        raise ValueError(f"no engine runs {choice}")
    recipe, layout = candidate.recipe, candidate.layout
    batch = BatchPoint.of(recipe, layout, int(choice["micro_batch"]))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    if not dist.is_initialized():
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
        }
        store = cast(Any, dist).HashStore()
        dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=0, world_size=1)
    engine = engines.create(recipe, layout, device)
    tokens = torch.randint(recipe.model.vocab_size, (batch.micro_batch, recipe.seq_len + 1), device=device)
    micro_batches = [tokens] * batch.grad_accum

    def run(steps: int) -> float:
        if on_gpu:
            torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(steps):
            engine.step(micro_batches, Unmarked())
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began_s

    run(WARM_UP_STEPS)
    return TIMED_STEPS * recipe.tokens_per_step / run(TIMED_STEPS)
