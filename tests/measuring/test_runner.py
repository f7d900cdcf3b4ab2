"""Each batch point begins with a step whose peak of memory is complete, even if graphs of its shape exist."""

# pyright: reportPrivateUsage=false
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.contract.cases import BLOOM, GLOBAL_BATCH, recipe
from tests.contract.group import run_group
from tests.measuring.rungs import Clock, Meter
from trainers import data
from trainers.engines.create import create_engine
from trainers.measuring.runner import StepRunner
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout

pytestmark = pytest.mark.contract


def _replays(layout: Layout) -> list[list[Any]]:
    """Returns for two runners of one shape whether steps are replayed, after each of three steps (None: not yet)."""
    chosen = recipe(BLOOM)
    engine = create_engine(chosen, layout, torch.device("cpu"))
    context = SimpleNamespace(
        meter=Meter(),
        clock=Clock,
        device=torch.device("cpu"),
        job=SimpleNamespace(recipe=chosen, layout=layout, first_step_s=60.0),
        watchdog=SimpleNamespace(beat=lambda *_, **__: None, saw=lambda _: None, allowance_s=60.0),
        gather=lambda value: [value],
        enter=lambda _: None,
        promise=lambda _: None,
        rank=0,
    )
    replays = list[list[Any]]()
    for _ in range(2):
        batch = BatchPoint(micro_batch=GLOBAL_BATCH // 2, grad_accum=2)
        runner = StepRunner(cast(Any, context), engine, data.source(chosen), batch)
        after = list[Any]()
        for number in range(3):
            runner.numbered(number)
            after.append(engine.in_effect()["cuda_graphs"])
        replays.append(after)
    engine.close()
    return replays


def test_a_batch_point_does_not_begin_with_replays_of_an_earlier_one() -> None:
    layout = Layout(engine="ddp", attention="sdpa", cuda_graphs="on")
    assert run_group(_replays, layout, 1) == [[None, "on", "on"]] * 2
