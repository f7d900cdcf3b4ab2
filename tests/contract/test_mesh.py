"""Every pair of model, degrees, engine and kernels trains as the dense model does, gradient by gradient."""

import dataclasses
import functools
from typing import Any

import pytest
import torch

from tests.contract.group import run_group
from tests.contract.mesh_cases import MODELS, WORLD_SIZE, MeshCase, compiled, faulty, pairwise, pipelines, product
from tests.contract.mesh_group import Trained, dense, run_all, run_generated
from tests.contract.reference import dense_model, make_optimizer
from trainers.spec.recipe import Recipe

pytestmark = pytest.mark.contract

CASES = [*pairwise(), *pipelines()]
COMPILED, FAULTY = compiled(), faulty()


@functools.cache
def results(world_size: int = WORLD_SIZE) -> list[dict[str, Any]]:
    return run_group(run_all, CASES if world_size == WORLD_SIZE else [*COMPILED, *FAULTY], world_size)


@functools.cache
def expected(recipe: Recipe) -> Trained:
    """Returns the dense model's results, in fp32 except that weights and states are bf16 where the recipe's are."""
    model = dense_model(recipe)
    return dense(MeshCase(recipe=recipe, layout=CASES[0].layout), model, make_optimizer(model, recipe))


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
        if not (error := ((run.gradients[name] - expected_value).norm() / expected_value.norm()).item()) <= (
            6e-2 if half else 1e-5
        ):
            sentences.append(f"the gradient of {name} differs by {error:.1e}")
    for quantity, actual, expected_value, allowed in (
        ("loss", run.losses, reference.losses, 5e-3 if half else 1e-5),
        ("gradient norm", run.grad_norms, reference.grad_norms, 3e-2 if half else 1e-4),
    ):
        if not (error := max(abs(a - b) / abs(b) for a, b in zip(actual, expected_value, strict=True))) <= allowed:
            sentences.append(f"{quantity} differs by {error:.1e}")
    return sentences


def _each(cases: list[MeshCase]) -> list[Any]:
    return [pytest.param(i, id=case.name) for i, case in enumerate(cases)]


def _result(index: int, world_size: int = WORLD_SIZE) -> dict[str, Any]:
    result = results(world_size)[index]
    if "error" in result:
        pytest.fail(result["error"])
    return result


@pytest.mark.parametrize("index", _each(CASES))
def test_gradients_of_every_parameter_are_those_of_the_dense_model(index: int) -> None:
    result = _result(index)
    assert differences(result["trained"], CASES[index].recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize("index", _each(COMPILED))
def test_compiled_blocks_lose_no_gradient(index: int) -> None:
    result = _result(index, 2)
    assert differences(result["trained"], COMPILED[index].recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize("index", [param for param in _each(CASES) if CASES[param.values[0]].layout.tp > 1])
def test_no_rank_holds_all_logits_where_the_vocabulary_is_cut(index: int) -> None:
    assert not _result(index)["whole_logits"]


@pytest.mark.heavy
def test_generated_code_loses_no_gradient() -> None:
    """Checks gradients with inductor's code: torch 2.11's lost gradients of collectives that write into a tensor, which
    a graph that was only traced did not lose.
    """
    results = run_group(run_generated, COMPILED, 2)
    wrong = [
        result.get("error") or differences(result["trained"], case.recipe)
        for case, result in zip(COMPILED, results, strict=True)
    ]
    assert wrong == [[]] * len(COMPILED)


@pytest.mark.heavy
@pytest.mark.parametrize("model", MODELS)
def test_the_whole_product_of_degrees_and_checkpointing_trains_as_the_dense_model(model: str) -> None:
    assert wrong_in([case for case in product() if case.recipe.model.name == model]) == {}


def test_all_logits_are_seen_where_the_vocabulary_is_whole() -> None:
    undivided = [i for i, case in enumerate(CASES) if case.layout.tp == 1 and case.layout.loss == "plain"]
    assert all(_result(i)["whole_logits"] for i in undivided)


@pytest.mark.parametrize("index", _each(FAULTY))
def test_a_planted_fault_is_seen(index: int) -> None:
    assert differences(_result(len(COMPILED) + index, 2)["trained"], FAULTY[index].recipe) != []
