"""Gradients of every parameter under each layout, on the devices here, beside a plain model in fp32. Run

python -m benchmarks.mesh_gradients [tr3m_1b3 llama3_8b bloom7b] [--ranks 2] [--layers 2] [--set tp=1,2 ...]

The layouts are the space's own for so many devices, changed by --set as in platform.search; DeepSpeed's are left out,
since it keeps its gradients to itself. The model has --layers blocks. The reference is DDP in fp32 with eager
attention and a plain loss. A row has the largest relative errors of gradients, and those of loss and gradient norm over
two steps. Without GPUs the spaces' miniatures run on gloo. It measures no time. The exit code is 1 where an error is
above what the precision explains.

Its figures: docs/lab/degrees.csv#four-h200-mended.3.
"""

# pyright: reportPrivateUsage=false

import argparse
import dataclasses
import gc
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import search_spaces
from benchmarks import ranks
from benchmarks.shortened import with_blocks
from search_spaces.candidate import Candidate
from tests.contract.mesh_group import Trained, note_gradients
from trainers import data
from trainers.engines.create import create_engine
from trainers.marks.step import Unmarked
from trainers.measuring.timed_steps import losses_of
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

STEPS = 2
ALLOWED = {"fp32": 1e-3, "bf16": 8e-2, "fp16": 5e-2}
"""Relative error of a gradient that rounding explains, by the type of products."""
SMALLEST = 1e-3
"""Share of the norm of all gradients below which a gradient is a sum that cancels and its error relative to this."""
SEQUENCES = 8


def main() -> None:
    """Prints a row for each layout of each space; ends with exit code 1 where one is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("spaces", nargs="*", default=["tr3m_1b3", "llama3_8b", "bloom7b"])
    parser.add_argument("--ranks", type=int, default=min(2, torch.cuda.device_count() or 2))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    try:
        ranks.check(options.ranks)
        for name in options.spaces:
            search_spaces.load(name).with_changes(options.set)
    except (KeyError, ValueError) as error:
        parser.error(str(error.args[0]))
    wrong = Path(f"{Path.cwd().name}-mesh-gradients.wrong")
    wrong.unlink(missing_ok=True)
    for name in options.spaces:
        ranks.run(_compare, options.ranks, name, options.layers, tuple(options.set), str(wrong))
    if wrong.exists():
        wrong.unlink()
        sys.exit(1)


def _compare(device: torch.device, name: str, num_layers: int, changes: Sequence[str], wrong: str) -> None:
    world_size = dist.get_world_size()
    space = search_spaces.load(name)
    if device.type == "cpu" and space.miniature is not None:
        space = space.miniature.on_workers(world_size)
    space = space.with_changes(changes)
    references: dict[Recipe, Trained] = {}
    layouts = set[Layout]()
    for candidate in space.candidates(world_size)[0]:
        if candidate.layout in layouts or candidate.layout.engine == "deepspeed":
            continue
        layouts.add(candidate.layout)
        recipe = _short(candidate.recipe, num_layers)
        plain = dataclasses.replace(recipe, compute_precision="fp32", state_precision="fp32")
        if plain not in references:
            reference = Layout(engine="ddp", dp_replicate=world_size, attention="eager", loss="plain")
            references[plain] = _trained(plain, reference, 1, device)
        row, right = _row(candidate, recipe, references[plain], device)
        if dist.get_rank() == 0:
            print(row, flush=True)
            if not right:
                Path(wrong).touch()


def _short(recipe: Recipe, num_layers: int) -> Recipe:
    """Returns the recipe of a few sequences and blocks."""
    model = with_blocks(recipe.model, num_layers)
    return dataclasses.replace(recipe.of_batch(SEQUENCES), model=model, data=data.STREAM)


def _row(candidate: Candidate, recipe: Recipe, reference: Trained, device: torch.device) -> tuple[str, bool]:
    """Returns a line for one layout, and whether it trains as the reference does."""
    layout = candidate.layout
    head = f"{recipe.model.name}, {recipe.compute_precision}: {layout.label}"
    try:
        trained = _trained(recipe, layout, candidate.micro_batches[0], device)
    except Exception:
        return f"{head} | failed: {traceback.format_exc()[-2000:]}", False
    finally:
        gc.collect()
        torch.compiler.reset()
    least = SMALLEST * torch.stack([gradient.norm() for gradient in reference.gradients.values()]).norm()
    errors = {
        name: (
            (trained.gradients[name].to(expected.device) - expected).norm() / expected.norm().clamp(min=least)
        ).item()
        for name, expected in reference.gradients.items()
    }
    worst = max(errors, key=lambda name: errors[name])
    of_loss, of_norm = (
        max(abs(a - b) / abs(b) for a, b in zip(value, expected, strict=True))
        for value, expected in ((trained.losses, reference.losses), (trained.grad_norms, reference.grad_norms))
    )
    allowed = ALLOWED.get(recipe.compute_precision, 0.2)
    right = errors[worst] <= allowed and of_loss <= allowed / 10 and of_norm <= allowed
    several = ", ".join(f"{name} {error:.1e}" for name, error in sorted(errors.items(), key=lambda x: -x[1])[:4])
    row = f"{head} | {'ok' if right else 'WRONG'} | gradients {several} | loss {of_loss:.1e}, norm {of_norm:.1e}"
    return row, right


def _trained(recipe: Recipe, layout: Layout, micro_batch: int, device: torch.device) -> Trained:
    """Returns two steps under the layout. Gradients are whole and clipped, of the first step."""
    grad_accum = max(1, SEQUENCES // (micro_batch * layout.data_parallel))
    micro_batch = SEQUENCES // (grad_accum * layout.data_parallel)
    batch = BatchPoint(micro_batch=micro_batch, grad_accum=grad_accum)
    engine: Any = create_engine(recipe, layout, device)
    gradients = note_gradients(engine)
    source = data.source(recipe)
    losses, norms = list[float](), list[float]()
    for step in range(STEPS):
        engine.set_learning_rate(recipe.learning_rate)
        micro_batches = [
            torch.from_numpy(
                source.sequences(
                    step,
                    data.sample_indices(
                        batch,
                        data_parallel=layout.data_parallel,
                        rank=layout.data_parallel_rank(dist.get_rank()),
                        micro_step=micro_step,
                    ),
                )
            ).to(device)
            for micro_step in range(grad_accum)
        ]
        result = engine.step(micro_batches, Unmarked())
        losses += losses_of([result], _gathered)
        norms.append(result.grad_norm.item())
    engine.close()
    return Trained(weights={}, stepped={}, logits=torch.empty(0), gradients=gradients, losses=losses, grad_norms=norms)


def _gathered(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


if __name__ == "__main__":
    main()
