"""Tests which planted faults the numerics gate catches, and by which comparison. Run from the checkout:

    python -m benchmarks.gate_faults [gpt2 bloom7b ...] [--layers 4] [--sizes 2x32 2x8]

One device. The candidate is DDP with the space's fast kernels and compiled blocks, in two micro-steps; the reference
is DDP with eager attention, in micro-steps of one sequence. Each fault is planted in a candidate of its own. A row has
the comparisons that fail, with their errors and tolerances, or the whole verdict where it passes. `nothing` must
pass. Without a GPU the spaces' miniatures run, uncompiled.

Its figures: docs/lab/gate.csv#gate-faults, docs/lab/gate.csv#gate-compares.
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
from trainers.engines.create import create_engine
from trainers.marks.step import Unmarked
from trainers.measuring import gate_steps
from trainers.measuring.timed_steps import losses_of
from trainers.records.job import GateSize
from trainers.records.journal import GateCurves
from trainers.spec.architectures import architecture_of
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
    engine.recipe = dataclasses.replace(engine.recipe, grad_clip=1e9)


def _vectors_never_stepped(engine: Any) -> None:
    vectors = [parameter for parameter in engine.models[0].module.parameters() if parameter.dim() < 2]
    _after_each_step(engine, vectors, lambda before, _: before)


def _noisy_gradients(engine: Any) -> None:
    generator = torch.Generator().manual_seed(1)

    def noisy(_: str, gradient: torch.Tensor) -> None:
        noise = torch.randn(gradient.shape, generator=generator).to(gradient)
        gradient.add_(noise * gradient.square().mean().sqrt(), alpha=0.05)

    _before_each_step(engine, noisy)


def _attention_gradients_negated(engine: Any) -> None:
    names = {id(parameter): name for name, parameter in engine.models[0].module.named_parameters()}
    first = {
        names[id(parameter)]
        for path, parameter in engine.models[0].units[0].named_parameters()
        if any(word in path for word in ("query_key_value", "c_attn", "q_proj", "k_proj", "v_proj"))
    }
    _before_each_step(engine, lambda name, gradient: gradient.neg_() if name in first else None)


def _before_each_step(engine: Any, change: Callable[[str, torch.Tensor], object]) -> None:
    step = engine._optimizer_step

    def changed() -> torch.Tensor:
        with torch.no_grad():
            for name, parameter in engine.models[0].module.named_parameters():
                change(name, parameter.grad)
        return step()

    engine._optimizer_step = changed


def _no_weight_decay(engine: Any) -> None:
    engine._optimizer.param_groups[0]["weight_decay"] = 0.0


def _vectors_undecayed(engine: Any) -> None:
    vectors = [parameter for parameter in engine.models[0].module.parameters() if parameter.dim() < 2]
    rate = engine.recipe.weight_decay

    def decayed_back(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        return after + engine._optimizer.param_groups[0]["lr"] * rate * before

    _after_each_step(engine, vectors, decayed_back)


def _other_beta(engine: Any) -> None:
    engine._optimizer.param_groups[0]["betas"] = (0.9, 0.999)


def _attended(change: Callable[[torch.Tensor, dict[str, Any]], tuple[torch.Tensor, dict[str, Any]]]) -> None:
    """Changes the queries and the options of every call of scaled_dot_product_attention."""

    def changed(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, **options: Any
    ) -> torch.Tensor:
        query, options = change(query, options | {"attn_mask": attn_mask})
        return _attention(query, key, value, **options)

    cast(Any, F).scaled_dot_product_attention = changed


def _scores_scaled(_: Any) -> None:
    _attended(lambda query, options: (query * 1.1, options))


def _scores_zero(_: Any) -> None:
    _attended(lambda query, options: (query * 0.0, options))


def _future_seen(_: Any) -> None:
    def seeing(query: torch.Tensor, options: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        mask = options.get("attn_mask")
        if mask is not None:
            mask = torch.ones_like(mask) if mask.dtype == torch.bool else mask.masked_fill(mask < _MASKED, 0.0)
        return query, options | {"is_causal": False, "attn_mask": mask}

    _attended(seeing)


def _no_alibi(_: Any) -> None:
    def without(query: torch.Tensor, options: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        mask = options["attn_mask"]
        return query, options | {"attn_mask": torch.where(mask < _MASKED, mask, torch.zeros_like(mask))}

    _attended(without)


def _queries_not_normed(engine: Any) -> None:
    def scaled(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda hidden: hidden * module.weight

    for name, module in engine.models[0].module.named_modules():
        if name.endswith("q_norm"):
            module.forward = scaled(module)


_MASKED = -1e4
"""A bias below which a key is masked."""

FAULTS: tuple[tuple[str, Callable[[Any], None]], ...] = (
    ("nothing", _nothing),
    ("attention scores x 0", _scores_zero),
    ("attention scores 10 % too large", _scores_scaled),
    ("attention sees the future", _future_seen),
    ("no ALiBi", _no_alibi),
    ("no norm of queries", _queries_not_normed),
    ("gradients with 5 % noise", _noisy_gradients),
    ("the first block's q, k, v gradients negated", _attention_gradients_negated),
    ("gradients doubled", _gradients_doubled),
    ("gradients never cleared", _gradients_kept),
    ("gradients not clipped", _unclipped),
    ("the last micro-step's gradients alone", _last_micro_step_alone),
    ("weights never updated", _never_updated),
    ("norms and biases never updated", _vectors_never_stepped),
    ("the first block never updated", _first_block_frozen),
    ("half the learning rate", _half_the_rate),
    ("weights rounded to bf16 after each step", _weights_rounded_to_bf16),
    ("no weight decay", _no_weight_decay),
    ("no weight decay of norms and biases", _vectors_undecayed),
    ("beta2 of 0.999", _other_beta),
)
OF_ATTENTION = (_scores_zero, _scores_scaled, _future_seen, _no_alibi)
"""Faults that are planted in scaled_dot_product_attention."""


def applies(plant: Callable[[Any], None], recipe: Recipe, layout: Layout) -> bool:
    """Returns whether the fault can be planted in that layout of that recipe's model."""
    if plant is _queries_not_normed:
        return architecture_of(recipe.model.architecture).query_key_norm != "none"
    if plant is _no_alibi and recipe.model.position != "alibi":
        return False
    return plant not in OF_ATTENTION or layout.attention == "sdpa"


def curves(
    recipe: Recipe, layout: Layout, size: GateSize, micro_batch: int, plant: Callable[[Any], None], device: torch.device
) -> GateCurves:
    """Returns the gate's curves of an engine in which a fault was planted."""
    gated = dataclasses.replace(recipe.of_batch(size.sequences), data=data.STREAM)
    source = data.source(gated)
    engine = create_engine(gated, layout, device)

    def step(number: int) -> tuple[float, float, float]:
        began_s = time.perf_counter()
        tokens = torch.from_numpy(source.sequences(number, range(size.sequences))).to(device)
        result = engine.step(tokens.split(micro_batch), Unmarked())
        (loss,) = losses_of([result], lambda value: [value])
        return loss, float(result.grad_norm), time.perf_counter() - began_s

    try:
        plant(engine)
        steps = gate_steps.run(
            engine,
            gated,
            size,
            device=device,
            gather=lambda value: [value],
            step=step,
            is_reference=plant is unfaulted,
        )
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
        is_reference=plant is unfaulted,
        **{field.name: getattr(steps, field.name) for field in dataclasses.fields(steps)},
    )


def unfaulted(engine: Any) -> None:
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
        began_s = time.perf_counter()
        reference = curves(recipe, plain, size, 1, unfaulted, device)
        taken_s, steps_s = time.perf_counter() - began_s, sum(reference.step_times_s)
        yield f"  {size.steps} steps of {size.sequences}; the reference took {taken_s:.1f} s, its steps {steps_s:.1f} s"
        for fault, plant in FAULTS:
            if not applies(plant, recipe, candidate):
                continue
            verdict = gate.compare(reference, curves(recipe, candidate, size, size.sequences // 2, plant, device))
            caught = [check.words for check in verdict.checks if not check.passed]
            yield f"    {fault:44} {', '.join(caught) or 'passes: ' + verdict.sentence}"


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
    parser.add_argument("--sizes", nargs="+", type=_size, default=[GateSize(), _size("2x8")])
    parser.add_argument("--layers", type=int, default=4, help="blocks of the model on a GPU (default: 4)")
    options = parser.parse_args()
    ranks.run(_run, 1, options.spaces, options.sizes, options.layers)
