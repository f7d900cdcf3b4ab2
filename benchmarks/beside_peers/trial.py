"""The searched space, and the training function that times one of its points, shared by all peers."""

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import search_spaces
from search_spaces.candidate import Candidate
from search_spaces.space import Space
from trainers.engines.create import create_engine
from trainers.spec.batch import BatchPoint

WARM_UP_STEPS = 2
TIMED_STEPS = 4
AXES = ("engine", "zero_stage", "dp_shard", "tp", "pp", "cp", "compile", "loss", "checkpointing")

Choice = Mapping[str, str | int]


def space_of(name: str, changes: tuple[str, ...], gpus: int) -> Space:
    """Returns the searched space on `gpus` devices; on machines without a GPU its miniature, on as many CPU workers."""
    import torch

    space = search_spaces.load(name).with_changes(changes)
    if not torch.cuda.is_available() and space.miniature is not None:
        space = space.miniature
    return dataclasses.replace(space, num_workers=gpus)


def workers(space: Space) -> int:
    """Returns the number of devices that `space_of` gave the space."""
    assert space.num_workers is not None
    return space.num_workers


def candidates(space: Space) -> dict[tuple[str | int, ...], Candidate]:
    """Returns each valid layout by its values of `AXES`."""
    every = space.candidates(workers(space))[0]
    return {tuple(getattr(candidate.layout, axis) for axis in AXES): candidate for candidate in every}


def values(space: Space) -> dict[str, list[str | int]]:
    """Returns the values of each axis that occur in valid layouts, and of `micro_batch`."""
    keys = list(candidates(space))
    axes: dict[str, list[str | int]] = {axis: sorted({key[i] for key in keys}) for i, axis in enumerate(AXES)}
    return {**axes, "micro_batch": list(space.micro_batches)}


def candidate_of(space: Space, choice: Choice) -> Candidate | None:
    """Returns the layout of a choice; None where no engine runs that combination."""
    return candidates(space).get(tuple(choice[axis] for axis in AXES))


def tokens_per_s(space: Space, choice: Choice, rank: int = 0, store: Path | None = None) -> float:
    """Trains a few optimizer steps of the choice in this process, one of `space.num_workers`, and times the last ones.

    A process without a process group joins one, through the file `store` where there are several.

    Raises:
        ValueError: no engine runs that combination, or the micro-batch does not divide the global batch.
        torch.OutOfMemoryError: the choice does not fit.
    """
    import torch
    import torch.distributed as dist

    from trainers.marks.step import Unmarked

    candidate = candidate_of(space, choice)
    if candidate is None:
        raise ValueError(f"no engine runs {choice}")
    recipe, layout = candidate.recipe, candidate.layout
    batch = BatchPoint.of(recipe, layout, int(choice["micro_batch"]))
    on_gpu = torch.cuda.is_available()
    # Ray shows each worker a GPU of its own, as its first.
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        world = workers(space)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.environ["WORLD_SIZE"] = str(world)
        kinds = cast(Any, dist)
        joined = kinds.HashStore() if store is None else kinds.FileStore(str(store), world)
        dist.init_process_group("nccl" if on_gpu else "gloo", store=joined, rank=rank, world_size=world)
    engine = create_engine(recipe, layout, device)
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
