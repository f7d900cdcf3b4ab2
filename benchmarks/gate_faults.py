"""Tests which planted faults the numerics gate catches, by the number of its steps and sequences. Run from the
checkout:

    python -m benchmarks.gate_faults [gpt2 bloom7b ...] [--layers 4] [--sizes 20x32 20x16 10x16]

One device. The candidate is DDP with the space's fast kernels and compiled blocks, in two micro-steps; the reference
is DDP with eager attention, in micro-steps of one sequence. Each fault is planted in a candidate of its own. A row has
the largest relative error of losses and of gradient norms for each size, and whether the gate fails it. `nothing` must
pass. Without a GPU the spaces' miniatures run, uncompiled.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F

import search_spaces
from benchmarks import ranks
from benchmarks.shortened import with_blocks
from platform.study.result import gate
from trainers import data
from trainers.engines.base import create_engine
from trainers.marks.step import Unmarked
from trainers.measuring.timed_steps import losses_of
from trainers.records.job import GateSize
from trainers.records.journal import GateCurves
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

_attention = F.scaled_dot_product_attention


def _nothing(engine: Any) -> None:
    """Leaves the engine as it is."""


def _last_micro_step_alone(engine: Any) -> None:
    step = engine.step
    engine.step = lambda micro_batches, marks: step(micro_batches[-1:], marks)


def _gradients_doubled(engine: Any) -> None:
    engine._set_grad_accum = lambda grad_accum: setattr(engine, "_grad_accum", grad_accum / 2)


def _gradients_kept(engine: Any) -> None:
    engine._optimizer.zero_grad = lambda set_to_none=True: None


def _never_updated(engine: Any) -> None:
    _rate_times(engine, 0.0)


def _half_the_rate(engine: Any) -> None:
    _rate_times(engine, 0.5)


def _rate_times(engine: Any, factor: float) -> None:
    set_rate = engine.set_learning_rate
    engine.set_learning_rate = lambda rate: set_rate(rate * factor)


def _first_block_frozen(engine: Any) -> None:
    _after_each_step(engine, list(engine.models[0].units[1].parameters()), lambda before, _: before)


def _weights_rounded_to_bf16(engine: Any) -> None:
    _after_each_step(engine, list(engine.models[0].module.parameters()), lambda _, after: after.bfloat16())


def _after_each_step(
    engine: Any, parameters: list[torch.Tensor], change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    step = engine._optimizer_step

    def changed() -> torch.Tensor:
        before = [parameter.detach().clone() for parameter in parameters]
        norm = step()
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(change(old, parameter))
        return norm

    engine._optimizer_step = changed


def _unclipped(engine: Any) -> None:
    engine._recipe = dataclasses.replace(engine._recipe, grad_clip=1e9)


def _scores_scaled(engine: Any) -> None:
    def scaled(query: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        return _attention(query * 1.1, *arguments, **options)

    cast(Any, F).scaled_dot_product_attention = scaled


def _future_seen(engine: Any) -> None:
    def seeing(*tensors: Any, **options: Any) -> torch.Tensor:
        return _attention(*tensors, **(options | {"is_causal": False}))

    cast(Any, F).scaled_dot_product_attention = seeing


FAULTS: tuple[tuple[str, Callable[[Any], None]], ...] = (
    ("nothing", _nothing),
    ("the last micro-step's gradients alone", _last_micro_step_alone),
    ("gradients doubled", _gradients_doubled),
    ("gradients never cleared", _gradients_kept),
    ("gradients not clipped", _unclipped),
    ("weights never updated", _never_updated),
    ("half the learning rate", _half_the_rate),
    ("the first block never updated", _first_block_frozen),
    ("weights rounded to bf16 after each step", _weights_rounded_to_bf16),
    ("attention scores 10 % too large", _scores_scaled),
    ("attention sees the future", _future_seen),
)


def curves(
    recipe: Recipe, layout: Layout, size: GateSize, micro_batch: int, plant: Callable[[Any], None], device: torch.device
) -> GateCurves:
    """Returns the gate's curves of an engine in which a fault was planted."""
    gated = dataclasses.replace(recipe.of_batch(size.sequences), data=data.STREAM)
    source = data.source(gated)
    engine = create_engine(gated, layout, device)
    try:
        plant(engine)
        losses: list[float] = []
        norms: list[float] = []
        began_s = time.perf_counter()
        for step in range(size.steps):
            engine.set_learning_rate(recipe.learning_rate * size.rate * (step + 1) / size.steps)
            tokens = torch.from_numpy(source.sequences(step, range(size.sequences))).to(device)
            result = engine.step(tokens.split(micro_batch), Unmarked())
            losses += losses_of([result], lambda value: [value])
            norms.append(float(result.grad_norm))
        taken_s = time.perf_counter() - began_s
    finally:
        cast(Any, F).scaled_dot_product_attention = _attention
        engine.close()
        torch.compiler.reset()
    return GateCurves(
        trial_id="",
        recipe=recipe,
        layout=layout,
        steps=size.steps,
        sequences=size.sequences,
        losses=tuple(losses),
        grad_norms=tuple(norms),
        step_times_s=(taken_s,),
        is_reference=plant is _plain,
    )


def _plain(engine: Any) -> None:
    """Does nothing: the reference has no fault."""


def rows(name: str, sizes: Iterable[GateSize], num_layers: int, device: torch.device) -> Iterator[str]:
    """Yields a line for each size and fault of one space."""
    space = search_spaces.load(name)
    on_gpu = device.type == "cuda"
    recipe = (space if on_gpu else space.miniature or space).recipe
    if on_gpu:
        recipe = dataclasses.replace(recipe, model=with_blocks(recipe.model, num_layers))
    fast = "flex" if recipe.model.position == "alibi" and on_gpu else "sdpa"
    plain = Layout(engine="ddp", attention="eager", loss="plain", grad_sync="last", checkpointing="none")
    candidate = dataclasses.replace(
        plain, attention=fast, loss="chunked", compile="block" if on_gpu else "none", checkpointing="none"
    )
    yield f"{name}: {recipe.model.num_layers} blocks, {recipe.compute_precision}"
    yield f"  {candidate.label} beside {plain.label}"
    for size in sizes:
        reference = curves(recipe, plain, size, 1, _plain, device)
        fell = f"{reference.losses[0]:.4f} to {reference.losses[-1]:.4f}"
        taken_s = reference.step_times_s[0]
        yield f"  {size.steps} steps of {size.sequences}; the loss goes from {fell} in {taken_s:.1f} s"
        for fault, plant in FAULTS:
            if fast == "flex" and plant in (_scores_scaled, _future_seen):
                continue  # those two are planted in scaled_dot_product_attention
            verdict = gate.compare(reference, curves(recipe, candidate, size, size.sequences // 2, plant, device))
            word = "passes" if verdict.passed else "FAILS"
            yield f"    {fault:40} loss {verdict.loss_error:.1e}  norm {verdict.norm_error:.1e}  {word}"


def _run(device: torch.device, names: list[str], sizes: list[GateSize], num_layers: int) -> None:
    for name in names:
        for row in rows(name, sizes, num_layers, device):
            print(row, flush=True)


def _size(text: str) -> GateSize:
    steps, sequences = text.split("x")
    return GateSize(steps=int(steps), sequences=int(sequences))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", nargs="*", default=["gpt2", "bloom7b"])
    parser.add_argument("--sizes", nargs="+", type=_size, default=[GateSize(), _size("20x16"), _size("10x16")])
    parser.add_argument("--layers", type=int, default=4, help="blocks of the model on a GPU (default: 4)")
    options = parser.parse_args()
    ranks.run(_run, 1, options.spaces, options.sizes, options.layers)
