"""Every pair of model, degrees, engine and kernels trains as the dense model does, gradient by gradient."""

import dataclasses
import functools
from typing import Any

import pytest
import torch

from tests.contract.covering import Groups, covering, parameters
from tests.contract.group import run_group
from tests.contract.mesh_cases import (
    MODELS,
    WORLD_SIZE,
    MeshCase,
    compiled,
    faulty,
    pairwise,
    product,
    wide,
)
from tests.contract.mesh_group import Trained, dense, run_all, run_generated
from tests.contract.reference import dense_model, make_optimizer
from trainers.spec.recipe import Recipe

pytestmark = pytest.mark.contract

PAIRS = covering(pairwise())
ON_TWO = [*compiled(), *faulty()]
WHOLE = [*PAIRS, *wide()]
GROUPS = Groups(functools.partial(run_group, run_all), [*WHOLE, *ON_TWO])


@functools.cache
def expected(recipe: Recipe) -> Trained:
    """Returns the dense model's results, in fp32 except that weights and states are bf16 where the recipe's are."""
    model = dense_model(recipe)
    return dense(MeshCase(recipe=recipe, layout=PAIRS[0].layout), model, make_optimizer(model, recipe))


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


@pytest.mark.parametrize("case", parameters(WHOLE))
def test_gradients_of_every_parameter_are_those_of_the_dense_model(case: MeshCase) -> None:
    result = GROUPS.result(case)
    assert differences(result["trained"], case.recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize("case", parameters(case for case in ON_TWO if not case.fault))
def test_compiled_blocks_lose_no_gradient(case: MeshCase) -> None:
    result = GROUPS.result(case)
    assert differences(result["trained"], case.recipe) == []
    assert result["mismatches"] == []


@pytest.mark.parametrize("case", parameters(case for case in WHOLE if case.layout.tp > 1))
def test_no_rank_holds_all_logits_where_the_vocabulary_is_cut(case: MeshCase) -> None:
    assert not GROUPS.result(case)["whole_logits"]


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
    undivided = [case for case in PAIRS if case.layout.tp == 1 and case.layout.loss == "plain" and not case.heavy]
    assert undivided and all(GROUPS.result(case)["whole_logits"] for case in undivided)


@pytest.mark.parametrize("case", parameters(case for case in ON_TWO if case.fault))
def test_a_planted_fault_is_seen(case: MeshCase) -> None:
    assert differences(GROUPS.result(case)["trained"], case.recipe) != []
