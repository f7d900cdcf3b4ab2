"""The expected time of trials and final runs where whole steps are timed."""

import dataclasses

import pytest

from platform.cluster.nodes import ClusterHandle
from platform.cost_model.predict import predict
from platform.search.__main__ import parse
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.search.setup.planning import TRIAL_S
from platform.search.setup.request import read_request
from platform.search.setup.study_setup import StudySetup, setup_of
from trainers.spec.cluster import Cluster

H200 = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=140.0, capability=(9, 0), devices_per_node=1)
NO_FINALS = ConfirmationRules(repeats=0, finalists=0)


def subject(*options: str) -> StudySetup:
    request = read_request(parse(["bloom7b", "--set", "engine=ddp", *options]))
    return setup_of(request, ClusterHandle(cluster=H200, cpus_per_worker=1.0, driver_ip="127.0.0.1"), None)


@pytest.mark.parametrize(
    ("options", "steps"),
    [((), 0), (("--steps", "12"), 0), (("--whole-steps",), 4), (("--whole-steps", "--steps", "12"), 13)],
)
def test_a_searcher_knows_that_whole_steps_are_run(options: tuple[str, ...], steps: int) -> None:
    """Counts the steps of all micro-steps: one to warm up, then the timed ones."""
    costs = subject(*options).problem.costs
    assert costs.steps == steps
    assert costs.rung_s == 9.0


def test_the_time_that_a_dry_run_tells_holds_whole_steps() -> None:
    by_default, with_whole_steps = subject(), subject("--whole-steps")
    plan = with_whole_steps.plan
    assert plan.columns is not None
    steps_s = predict(plan.columns).step.total_s
    assert plan.expected_s(
        plan.candidates, H200, with_whole_steps.timing, with_whole_steps.rules
    ) > 3 * plan.expected_s(plan.candidates, H200, by_default.timing, by_default.rules), (
        "a step of 512 micro-steps takes minutes"
    )
    last_runs_s = TRIAL_S["cuda"] + 9.0 + 4 * steps_s.mean() + 30.0 + 20.0
    start_s = len(plan.candidates) * TRIAL_S["cuda"]
    tried_s = start_s + (9.0 + 4 * steps_s).sum()
    assert plan.expected_s(plan.candidates, H200, with_whole_steps.timing, NO_FINALS) == pytest.approx(
        tried_s + last_runs_s
    )
    first_rung = dataclasses.replace(plan.candidates[0], micro_batches=plan.candidates[0].micro_batches[:1])
    first_rung_s = TRIAL_S["cuda"] + 9.0 + 4 * steps_s[0]
    assert plan.expected_s([first_rung], H200, with_whole_steps.timing, NO_FINALS) == pytest.approx(
        first_rung_s + last_runs_s
    )


def test_the_time_that_a_dry_run_tells_holds_a_stated_number_of_steps() -> None:
    """Checks 500 steps of three micro-steps, of steps that have many more."""
    stated = subject("--steps", "500")
    plan, timing = stated.plan, stated.timing
    assert plan.columns is not None
    first = plan.candidates[0]
    batch = first.batch_points()[0]
    alone = dataclasses.replace(first, micro_batches=(batch.micro_batch,))
    trial_s, nothing_s = (plan.expected_s(candidates, H200, timing, NO_FINALS) for candidates in ([alone], []))
    step_s = float(predict(plan.columns).step.total_s[0]) * 3 / batch.grad_accum
    assert batch.grad_accum > 3
    assert trial_s - nothing_s == pytest.approx(TRIAL_S["cuda"] + 9.0 + 501 * step_s)
