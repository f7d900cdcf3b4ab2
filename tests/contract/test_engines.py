"""Every engine, stage and degree has the reference's weights, logits, losses and norms; every fault shows."""

import dataclasses
import functools
from typing import Any

import pytest

from tests.contract.cases import Case, cases
from tests.contract.covering import covering
from tests.contract.group import run_cases
from tests.contract.reference import differences, reference

pytestmark = pytest.mark.contract

CASES = {world_size: cases(world_size) for world_size in (1, 2, 4)}
HEAVY = {
    world_size: [
        not is_often and not case.recipe.powersgd_rank for case, is_often in zip(group, covering(group), strict=True)
    ]
    for world_size, group in CASES.items()
}


@functools.cache
def results(world_size: int, *, heavy: bool) -> list[dict[str, Any]]:
    chosen = zip(CASES[world_size], HEAVY[world_size], strict=True)
    return run_cases([case for case, is_heavy in chosen if is_heavy is heavy], world_size)


def _all(*, faulty: bool) -> list[Any]:
    return [
        pytest.param(
            world_size,
            index,
            id=f"{world_size} ranks: {case.name}",
            marks=pytest.mark.heavy if HEAVY[world_size][index] else (),
        )
        for world_size, group in CASES.items()
        for index, case in enumerate(group)
        if bool(case.fault) == faulty
    ]


def _result(world_size: int, index: int) -> tuple[Case, dict[str, Any]]:
    heavy = HEAVY[world_size]
    result = results(world_size, heavy=heavy[index])[heavy[:index].count(heavy[index])]
    if "error" in result:
        pytest.fail(result["error"])
    return CASES[world_size][index], result


@pytest.mark.parametrize(("world_size", "index"), _all(faulty=False))
def test_trains_as_the_reference_does(world_size: int, index: int) -> None:
    case, result = _result(world_size, index)
    assert differences(result["run"], case.recipe) == []
    assert len(set(result["digests"])) == 1
    assert result["mismatches"] == []


@pytest.mark.parametrize(("world_size", "index"), _all(faulty=True))
def test_a_planted_fault_is_seen(world_size: int, index: int) -> None:
    case, result = _result(world_size, index)
    assert differences(result["run"], case.recipe) != []


def test_powersgd_is_one_recipe_however_a_batch_is_cut() -> None:
    """Checks that factors depend on the mean gradient alone, and on nothing that an engine before left behind."""
    indices = [i for i, case in enumerate(CASES[2]) if case.recipe.powersgd_rank]
    (_, first), (_, second) = (_result(2, i) for i in indices)
    assert first["run"].losses == pytest.approx(second["run"].losses, rel=1e-5)
    assert first["run"].grad_norms == pytest.approx(second["run"].grad_norms, rel=1e-4)
    exact = reference(dataclasses.replace(CASES[2][indices[0]].recipe, compression="none"))
    assert first["run"].losses[2] != pytest.approx(exact.losses[2], rel=1e-5)
