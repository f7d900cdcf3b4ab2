"""FP8 weights that are cast once a step give the bits of those cast in each pass, and old casts show."""

# pyright: reportPrivateUsage=false

import dataclasses
import functools
import tempfile
from typing import Any

import pytest
import torch

from tests.contract import whole_tensors
from tests.contract.float8_cases import float8_recipe
from tests.contract.group import run_group
from tests.training.engines_group import Hop, hops
from trainers import data
from trainers.distributed.state import Counters
from trainers.engines.create import create_engine
from trainers.marks.step import StepPhase
from trainers.models.float8 import KeptCasts
from trainers.spec import engines
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

pytestmark = pytest.mark.contract

STEPS, GRAD_ACCUM = 3, 3
_TWO: dict[str, Any] = {"engine": "ddp", "dp_replicate": 2}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "eager": ("llama", {}, _TWO),
    "bf16 states, selective": ("bloom", {"state_precision": "bf16"}, {**_TWO, "checkpointing": "selective"}),
    "full, every": ("neox", {}, {**_TWO, "checkpointing": "full", "grad_sync": "every"}),
    "compiled": ("llama", {"state_precision": "bf16"}, {**_TWO, "compile": "block", "attention": "sdpa"}),
    "compiled, selective": ("neox", {}, {**_TWO, "compile": "block", "checkpointing": "selective"}),
    "compiled, full": ("llama", {}, {**_TWO, "compile": "block", "checkpointing": "full"}),
    "pp": ("bloom", {}, {"engine": "ddp", "pp": 2}),
    "cp": ("llama", {}, {"engine": "ddp", "cp": 2, "attention": "sdpa"}),
}
"""The model, changes of its recipe, and a layout on two ranks."""
HEAVY = frozenset({"bf16 states, selective", "compiled, selective", "compiled, full", "cp"})
"""Those that run with `-m heavy` alone: their states, checkpointing, compilation or degree stand apart in the others or
in the contract of FP8.
"""


class _Gradients:
    """Marks that copy the gradients that an optimizer step takes."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.copies: list[torch.Tensor] = []

    def begin(self, phase: StepPhase) -> None:
        if phase is StepPhase.OPTIMIZER_STEP:
            self.copies += [weight.grad.clone() for weight in self._engine._weights]


def _recipe(model: str, changes: dict[str, Any]) -> Recipe:
    return dataclasses.replace(float8_recipe(model, "fp8_tensorwise"), **changes)


def _steps(engine: Any, recipe: Recipe, layout: Layout, marks: Any, count: int = STEPS) -> list[tuple[float, float]]:
    """Runs steps of `GRAD_ACCUM` micro-steps of two sequences, and returns losses and norms."""
    rank, source, figures = layout.data_parallel_rank(torch.distributed.get_rank()), data.source(recipe), []
    for step in range(count):
        first = rank * 2 * GRAD_ACCUM
        micro_batches = [
            torch.from_numpy(source.sequences(step, range(first + 2 * k, first + 2 * k + 2))) for k in range(GRAD_ACCUM)
        ]
        result = engine.step(micro_batches, marks)
        figures.append((result.loss_sum.item(), result.grad_norm.item()))
    return figures


def _run(case: tuple[str, dict[str, Any], dict[str, Any]], fp8_weights: str, *, forgets: bool = False) -> Any:
    """Returns losses and norms, gradients of each step, weights and mismatches. `forgets` casts only at the start."""
    model, changes, values = case
    recipe, layout = _recipe(model, changes), Layout(**values, fp8_weights=fp8_weights)  # pyright: ignore[reportArgumentType]
    engine: Any = create_engine(recipe, layout, torch.device("cpu"))
    if forgets:
        engine._casts.renew = lambda: None
    marks = _Gradients(engine)
    figures = _steps(engine, recipe, layout, marks)
    wrong = engines.mismatches(engine.in_effect(), recipe, layout, grad_accum=GRAD_ACCUM)
    weights = [*whole_tensors.weights(engine).values()]
    engine.close()
    return figures, marks.copies, weights, wrong


def _differences(kept: Any, cast: Any) -> list[str]:
    """Returns the quantities in which two runs differ in any bit."""
    names = ("losses and norms", "gradients", "weights")
    assert [len(values) for values in kept[:3]] == [len(values) for values in cast[:3]]
    same = [
        kept[0] == cast[0],
        *(all(map(torch.equal, of_kept, of_cast)) for of_kept, of_cast in zip(kept[1:3], cast[1:3], strict=True)),
    ]
    return [name for name, is_same in zip(names, same, strict=True) if not is_same]


def _loaded(*, forgets: bool) -> list[str]:
    """Returns how an engine that was given another's weights and states after it was made differs from the other in its
    next step, and what it reports.
    """
    recipe, layout = _recipe("llama", {}), Layout(**_TWO, fp8_weights="kept")
    trained, fresh = (create_engine(recipe, layout, torch.device("cpu")) for _ in range(2))
    _steps(trained, recipe, layout, _Gradients(trained), count=2)
    _steps(fresh, recipe, layout, _Gradients(fresh), count=1)  # its optimizer has states
    states = trained.training_state()
    for key, tensor in fresh.training_state().items():
        for to, part in zip(tensor.parts, states[key].parts, strict=True):
            to.tensor.copy_(part.tensor)
    if forgets:
        fresh._casts.renew = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    for engine in (fresh, trained):
        engine.adopt(Counters(optimizer_step=2))
    reported = [str(fresh.in_effect()["fp8_weights"])]
    runs = []
    for engine in (fresh, trained):
        marks = _Gradients(engine)
        runs.append((_steps(engine, recipe, layout, marks, count=1), marks.copies, whole_tensors.weights(engine)))
        engine.close()
    (figures, gradients, weights), expected = runs
    same = figures == expected[0] and all(map(torch.equal, gradients, expected[1]))
    same = same and all(torch.equal(weight, expected[2][name]) for name, weight in weights.items())
    return reported if same else [*reported, "another step"]


def _compared(names: list[str]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in names:
        kept, cast = (_run(CASES[name], how) for how in ("kept", "cast"))
        results[name] = (_differences(kept, cast), kept[3], cast[3])
    return results


def _run_others(folder: str) -> dict[str, Any]:
    results: dict[str, Any] = {}
    forgotten, cast = _run(CASES["eager"], "kept", forgets=True), _run(CASES["eager"], "cast")
    results["forgotten"] = (_differences(forgotten, cast), forgotten[3])
    kept, cast = (Layout(**_TWO, fp8_weights=how) for how in ("kept", "cast"))  # pyright: ignore[reportArgumentType]
    hop = Hop(recipe=_recipe("llama", {"global_batch": 4}), saved_by=kept, loaded_by=(kept, cast), folder=folder)
    (results["resumed"],) = hops([hop])
    results["loaded"] = [_loaded(forgets=forgets) for forgets in (False, True)]
    return results


@functools.cache
def compared(*, heavy: bool) -> dict[str, Any]:
    return run_group(_compared, [name for name in CASES if (name in HEAVY) is heavy], 2)


@functools.cache
def others() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return run_group(_run_others, folder, 2)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.heavy if name in HEAVY else ()) for name in CASES]
)
def test_kept_casts_have_the_bits_of_those_of_each_pass(name: str) -> None:
    differences, of_kept, of_cast = compared(heavy=name in HEAVY)[name]
    assert differences == []
    assert (of_kept, of_cast) == ([], [])


def test_casts_that_are_not_renewed_after_a_step_are_seen() -> None:
    differences, wrong = others()["forgotten"]
    assert differences == ["losses and norms", "gradients", "weights"]
    assert wrong == ["fp8_weights in effect is kept from other weights, the layout or recipe asks for kept"]


def test_a_resumed_training_has_the_losses_of_one_that_went_on() -> None:
    curves = others()["resumed"]
    assert curves.continued == [curves.undisturbed] * 2


def test_weights_that_are_loaded_are_cast_anew() -> None:
    whole, forgotten = others()["loaded"]
    assert whole == ["kept"]
    assert forgotten == ["kept from other weights", "another step"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_rounding_is_torchaos(dtype: torch.dtype) -> None:
    """Checks values over thirty binades, below the smallest scale, zero, and at the largest FP8 value."""
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic

    from trainers.models.float8 import _config, _layers

    generator = torch.Generator().manual_seed(0)
    spread = torch.exp2(torch.rand(64, 128, generator=generator) * 30 - 28) * torch.randn(64, 128, generator=generator)
    for weight in (spread, spread[:16, :16] * 1e-30, torch.zeros(16, 16), torch.full((16, 16), -448.0)):
        config = _config(_recipe("llama", {}), emulate=True, gathered=False)
        layer = _layers()[1].from_float(_linear(weight.to(dtype)), config=config)
        KeptCasts([layer]).renew()
        expected = hp_tensor_to_float8_dynamic(layer.weight, torch.float8_e4m3fn, layer.linear_mm_config)
        assert torch.equal(layer.cast_scale, expected._scale)
        assert torch.equal(layer.cast_weight.view(torch.uint8), expected._data.view(torch.uint8))


def _linear(weight: torch.Tensor) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    layer.weight = torch.nn.Parameter(weight)
    return layer
