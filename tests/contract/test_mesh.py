"""Every pair of model, degrees, engine and kernels trains as the dense model does, gradient by gradient."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.contract.group import run_group
from tests.contract.mesh_cases import (
    MODELS,
    PAIRS_SIZE,
    WORLD_SIZE,
    MeshCase,
    compiled,
    faulty,
    marked,
    pairwise,
    product,
    wide,
)
from tests.contract.mesh_group import Trained, dense, run_all, run_generated
from tests.contract.reference import dense_model, make_optimizer
from trainers.spec.recipe import Recipe

pytestmark = pytest.mark.contract

CASES = {PAIRS_SIZE: marked(pairwise()), WORLD_SIZE: wide(), 2: [*compiled(), *faulty()]}
"""The cases of each number of ranks."""


@functools.cache
def results(world_size: int, *, heavy: bool) -> list[dict[str, Any]]:
    return run_group(run_all, [case for case in CASES[world_size] if case.heavy is heavy], world_size)


@functools.cache
def expected(recipe: Recipe) -> Trained:
    """Returns the dense model's results, in fp32 except that weights and states are bf16 where the recipe's are."""
    model = dense_model(recipe)
    return dense(MeshCase(recipe=recipe, layout=CASES[PAIRS_SIZE][0].layout), model, make_optimizer(model, recipe))


def wrong_in(cases: list[MeshCase], world_size: int = WORLD_SIZE) -> dict[str, Any]:
    """Runs the cases and returns the error, or the differences and mismatches, of those that have any, by name."""
    results = run_group(run_all, cases, world_size, deadline_s=3600)
    wrong = {
        case.name: result.get("error") or [*differences(result["trained"], case.recipe), *result["mismatches"]]
        for case, result in zip(cases, results, strict=True)
    }
    return {name: sentences for name, sentences in wrong.items() if sentences}


def differences(run: Trained, recipe: Recipe) -> list[str]:
    """Returns a sentence for each difference from the dense model's results that exceeds the tolerances."""
    reference = expected(dataclasses.replace(recipe, compute_precision="fp32", state_precision="fp32"))
    half = recipe.compute_precision != "fp32"
    sentences = [] if run.gradients.keys() == reference.gradients.keys() else ["gradients have other names"]
    for name, weight in reference.weights.items():
        if not torch.equal(run.weights[name].float(), weight.to(run.weights[name].dtype).float()):
            sentences.append(f"start weights of {name} differ")
    scale = reference.logits.abs().max()
    if not (error := ((run.logits.float() - reference.logits).abs().max() / scale).item()) <= (5e-2 if half else 1e-5):
        sentences.append(f"logits differ by {error:.1e} of the largest")
    for name in run.gradients.keys() & reference.gradients.keys():
        expected_value = reference.gradients[name]
        # One number's gradient is a sum of both signs over all tokens, smaller than what it sums and rounds.
        allowed = 6e-2 if half else 1e-4 if expected_value.numel() == 1 else 1e-5
        if not (error := ((run.gradients[name] - expected_value).norm() / expected_value.norm()).item()) <= allowed:
            sentences.append(f"the gradient of {name} differs by {error:.1e}")
    for quantity, actual, expected_value, allowed in (
        ("loss", run.losses, reference.losses, 5e-3 if half else 1e-5),
        ("gradient norm", run.grad_norms, reference.grad_norms, 3e-2 if half else 1e-4),
    ):
        if not (error := max(abs(a - b) / abs(b) for a, b in zip(actual, expected_value, strict=True))) <= allowed:
            sentences.append(f"{quantity} differs by {error:.1e}")
    return sentences


def _each(*world_sizes: int, choose: Callable[[MeshCase], bool] = lambda case: not case.fault) -> list[Any]:
    return [
        pytest.param(world_size, index, id=case.name, marks=pytest.mark.heavy if case.heavy else ())
        for world_size in world_sizes
        for index, case in enumerate(CASES[world_size])
        if choose(case)
    ]


def _result(world_size: int, index: int) -> tuple[Recipe, dict[str, Any]]:
    case = CASES[world_size][index]
    place = sum(other.heavy is case.heavy for other in CASES[world_size][:index])
    result = results(world_size, heavy=case.heavy)[place]
    if "error" in result:
        pytest.fail(result["error"])
    return case.recipe, result


@pytest.mark.parametrize(("world_size", "index"), _each(PAIRS_SIZE, WORLD_SIZE))
def test_gradients_of_every_parameter_are_those_of_the_dense_model(world_size: int, index: int) -> None:
    recipe, result = _result(world_size, index)
    assert differences(result["trained"], recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize(("world_size", "index"), _each(2))
def test_compiled_blocks_lose_no_gradient(world_size: int, index: int) -> None:
    recipe, result = _result(world_size, index)
    assert differences(result["trained"], recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize(("world_size", "index"), _each(PAIRS_SIZE, WORLD_SIZE, choose=lambda case: case.layout.tp > 1))
def test_no_rank_holds_all_logits_where_the_vocabulary_is_cut(world_size: int, index: int) -> None:
    assert not _result(world_size, index)[1]["whole_logits"]


@pytest.mark.heavy
def test_generated_code_loses_no_gradient() -> None:
    """Checks gradients with inductor's code: torch 2.11's lost gradients of collectives that write into a tensor, which
    a graph that was only traced did not lose.
    """
    cases = compiled()
    results = run_group(run_generated, cases, 2)
    wrong = [
        result.get("error") or differences(result["trained"], case.recipe)
        for case, result in zip(cases, results, strict=True)
    ]
    assert wrong == [[]] * len(cases)


@pytest.mark.heavy
@pytest.mark.parametrize("model", MODELS)
def test_the_whole_product_of_degrees_and_checkpointing_trains_as_the_dense_model(model: str) -> None:
    assert wrong_in([case for case in product() if case.recipe.model.name == model]) == {}


def test_all_logits_are_seen_where_the_vocabulary_is_whole() -> None:
    undivided = [
        index
        for index, case in enumerate(CASES[PAIRS_SIZE])
        if case.layout.tp == 1 and case.layout.loss == "plain" and not case.heavy
    ]
    assert undivided and all(_result(PAIRS_SIZE, index)[1]["whole_logits"] for index in undivided)


@pytest.mark.parametrize(("world_size", "index"), _each(2, choose=lambda case: bool(case.fault)))
def test_a_planted_fault_is_seen(world_size: int, index: int) -> None:
    recipe, result = _result(world_size, index)
    assert differences(result["trained"], recipe) != []
