"""The problem of the guided search's tests: layouts of BLOOM-7b1 on four H200."""

# pyright: reportPrivateUsage=false

from platform.cost_model.ordering import known_columns
from platform.searchers.problem import Problem, TrialCosts
from search_spaces import load
from search_spaces.candidate import Candidate
from tests.samples import measurement
from trainers.records.measurement import Measurement
from trainers.spec.cluster import Cluster

H200S = Cluster(
    device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=4, capability=(9, 0)
)


PLAIN = ["attention=eager", "loss=plain", "compile=none", "tp=1", "pp=1", "cp=1", "micro_batch=1,2,4,8,16"]


BLOOM = load("bloom7b").with_changes(PLAIN).candidates(4)[0]
"""Candidates without the axes of kernels and with short ladders: a tenth of the layouts, few enough for tests over
all.
"""


PLANNED = Problem(
    candidates=BLOOM,
    columns=known_columns(BLOOM, H200S, None),
    costs=TrialCosts(num_devices=4),
    tokens=100e9,
)


def ran(candidate: Candidate, step_s: float) -> list[Measurement]:
    """Returns every rung at one step time."""
    tokens_per_s = candidate.tokens_per_step / step_s
    return [
        measurement(recipe=candidate.recipe, on=candidate.layout, micro_batch=rung, tokens_per_s=tokens_per_s)
        for rung in candidate.micro_batches
    ]
