"""The time of trials that is expected before any has run."""

import dataclasses

import pytest

from platform.cluster.nodes import ClusterHandle
from platform.search.__main__ import parse
from platform.search.loop.budget import Budget
from platform.search.session.dry_run import show_dry_run
from platform.search.setup.forecast import COMPILE_S, FIRST_START_S, NO_FORECAST, Forecast, compile_s, forecast_of
from platform.search.setup.planned_line import planned
from platform.search.setup.request import read_request
from platform.search.setup.study_setup import StudySetup, setup_of
from platform.study.history import History
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout

H200 = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=140.0, capability=(9, 0), devices_per_node=1)


def subject(*options: str, cluster: Cluster = H200) -> StudySetup:
    request = read_request(
        parse([*options, "--set", "engine=ddp", "--set", "attention=sdpa", "--set", "grad_sync=last"])
    )
    return setup_of(request, ClusterHandle(cluster=cluster, cpus_per_worker=1.0, driver_ip="127.0.0.1"), None)


def of(setup: StudySetup) -> Forecast:
    return forecast_of(setup.plan, setup.timing)


def test_a_trial_is_expected_to_take_its_start_its_compiling_and_a_rung_that_fills_its_time() -> None:
    """Checks GPT-2 on one H200, whose rungs have 4 s of windows and two steps before them."""
    setup = subject("gpt2", "--set", "compile=block")
    forecast = of(setup)
    (winner,) = forecast.winners.values()
    assert (winner.recipe, winner.layout) == (setup.recipes[0], planned(setup.plan).layouts[0].layout)
    windows_s = sum(winner.step_times_s[winner.warmup_steps :])
    assert 4.0 <= windows_s < 4.0 + setup.timing.max_windows * max(winner.windows_s)
    warm_up_s = 2 * winner.windows_s[0] + COMPILE_S["block"]
    assert forecast.trial_s == pytest.approx(FIRST_START_S / 2 + warm_up_s + windows_s)
    assert winner.step_time_derived == (winner.batch.grad_accum > 3)


@pytest.mark.parametrize(
    ("option", "least_steps"), [((), 3), (("--steps", "40"), 40), (("--whole-steps",), 3)], ids=["", "steps", "whole"]
)
def test_its_steps_are_those_that_are_asked_for(option: tuple[str, ...], least_steps: int) -> None:
    """Checks BLOOM-7b1, each of whose windows has one step of three micro-steps, or of all."""
    setup = subject("bloom7b", "--set", "state_precision=bf16", *option)
    (winner,) = of(setup).winners.values()
    timed = winner.step_times_s[winner.warmup_steps :]
    assert len(timed) >= least_steps and winner.step_time_s is not None
    whole_s = winner.step_time_s if option == ("--whole-steps",) else winner.step_time_s * 3 / winner.batch.grad_accum
    assert timed[0] == pytest.approx(whole_s) and winner.step_times_s[1] <= timed[0]


def test_a_whole_model_is_expected_to_compile_longer_the_more_layers_it_has() -> None:
    """Checks what was measured: 28 s of GPT-2's 12 layers, 153 s of Qwen3-8B's 36; stages compile their part."""
    layout = Layout(engine="ddp", compile="model")
    assert [round(compile_s(layout, layers)) for layers in (12, 36)] == [28, 154]
    assert compile_s(dataclasses.replace(layout, pp=3), 36) == compile_s(layout, 12)
    setup = subject("gpt2", "--set", "compile=block,model")
    compiles = [choice.layout.compile for choice in setup.plan.candidates]
    assert set(zip(compiles, setup.problem.compile_s, strict=True)) == {("block", 0.0), ("model", 9.0)}


def test_nothing_is_expected_where_no_step_is_predicted() -> None:
    unknown = dataclasses.replace(H200, device="Made-up GPU")
    assert of(subject("gpt2", cluster=unknown)) == NO_FORECAST and not NO_FORECAST.trial_s


def test_each_recipe_has_its_own_winner() -> None:
    setup = subject("gpt2", "--set", "global_batch=64,512")
    assert set(of(setup).winners) == {recipe.id for recipe in setup.recipes} and len(setup.recipes) == 2


def test_a_dry_run_says_whether_the_budget_holds_the_gate(capsys: pytest.CaptureFixture[str]) -> None:
    setup = subject("gpt2")
    show_dry_run(setup, Budget(time_s=60.0), History(), as_object=False)
    sentence = capsys.readouterr().out.splitlines()[-1]
    assert sentence.startswith(
        "1 min 0 s may be too short for the numerics gate: with 2 layouts and the winner's last run"
    )
    show_dry_run(setup, Budget(gpu_s=3600.0), History(), as_object=False)
    assert " allow about " in capsys.readouterr().out.splitlines()[-1]
