"""A pass that counts the tokens of experts ahead of a step grows with its micro-steps, and so do derived figures."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.contract.cases import MOE, recipe
from tests.profiling.test_trace import Device
from trainers.engines.create import create_stepper
from trainers.marks.kinds import COUNTING, MICRO_STEP, OPTIMIZER_STEP
from trainers.marks.step import StepPhase, Unmarked
from trainers.measuring.ladder import step_time_s
from trainers.measuring.timed_steps import timed_steps
from trainers.profiling.trace import step_sums
from trainers.spec.layout import Layout


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Forwards:
    """Marks that count the forward passes of a module in each phase of a step."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.phases: list[StepPhase] = []
        self.counts = Counter[int]()
        module.register_forward_hook(lambda *_: self.counts.update([len(self.phases)]))

    def begin(self, phase: StepPhase) -> None:
        self.phases.append(phase)


@pytest.mark.parametrize(
    ("balance_loss", "micro_steps", "ahead"), [("aux", 3, True), ("aux", 1, False), ("none", 3, False)]
)
def test_an_engine_marks_the_pass_and_each_micro_step_has_one_forward_pass(
    balance_loss: Any, micro_steps: int, ahead: bool, alone: None
) -> None:
    rate = {"balance_loss": balance_loss, "balance_rate": 0.01 if balance_loss == "aux" else 0.0}
    trained = dataclasses.replace(recipe(MOE, "fp32"), **rate)
    engine: Any = create_stepper(trained, Layout(engine="ddp", attention="sdpa"), torch.device("cpu"))
    shape = (1, trained.seq_len + 1)
    micro_batches = [torch.randint(0, trained.model.vocab_size, shape) for _ in range(micro_steps)]
    engine.step(micro_batches, Unmarked())  # in which the engine looks at its layout
    marks = Forwards(engine.models[0].module.model.layers[0])
    result = engine.step(micro_batches, marks)
    counting = [StepPhase.COUNTING] * ahead
    assert marks.phases == [*counting, *[StepPhase.MICRO_STEP] * micro_steps, StepPhase.OPTIMIZER_STEP]
    assert result.phases == tuple(marks.phases)
    assert [marks.counts[place] for place in range(1, len(marks.phases))] == [3] * ahead + [1] * micro_steps
    engine.close()


def test_a_step_of_more_micro_steps_counts_as_much_longer() -> None:
    """Checks a step of three micro-steps, 0.2 s each of counting, that stands for one of sixteen."""
    phases = (StepPhase.COUNTING, *[StepPhase.MICRO_STEP] * 3, StepPhase.OPTIMIZER_STEP)
    timed = timed_steps([0.6, 1.0, 0.9, 1.1, 0.5] * 2, [phases] * 2)
    assert timed.first_micro_s and timed.middle_micro_s and timed.last_micro_s
    whole_s = step_time_s(16, timed.first_micro_s, timed.middle_micro_s, timed.last_micro_s, timed.optimizer_s)
    assert whole_s == pytest.approx(16 * 0.2 + 1.0 + 14 * 0.9 + 1.1 + 0.5)
    assert timed.steps_s == pytest.approx([4.1, 4.1]) and timed.longest_beat_s == pytest.approx(1.1)


def test_so_does_a_profiled_step() -> None:
    """Checks steps of 3 us of counting, three micro-steps of 1 us and an optimizer step of 1, as one of sixteen."""
    device = Device()
    for start_us in (0.0, 10.0):
        device.host(COUNTING, start_us, start_us + 3, "user_annotation")
        for number in range(3, 6):
            device.host(MICRO_STEP, start_us + number, start_us + number + 1, "user_annotation")
        device.host(OPTIMIZER_STEP, start_us + 6, start_us + 7, "user_annotation")
    step = step_sums({"traceEvents": device.events}, grad_accum=16)
    assert step.wall_s == pytest.approx((16 * (1 + 1) + 1) * 1e-6)
