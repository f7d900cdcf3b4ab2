"""Traces: one that torch.profiler makes here, on a CPU, and one of a device as a list of events written by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from trainers.engines.model_preparation import prepare
from trainers.kernels.head import loss_of
from trainers.marks.kinds import ATTENTION, LOSS, MICRO_STEP, OPTIMIZER_STEP
from trainers.marks.ranges import named, naming
from trainers.models import weights
from trainers.models.model import build
from trainers.profiling.trace import has_kernels, step_sums
from trainers.records.sums import Sums
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec

SPEC = ModelSpec(
    name="t", architecture="bloom", num_layers=2, hidden_size=64, num_heads=4, vocab_size=512, init_std=0.1
)
NAMES = ("matmul", "attention", "loss", "optimizer", "other", "communication_exposed", "idle", "communication_hidden")


def traced(path: Path, **kernels: Any) -> dict[str, Any]:
    """Returns the trace, made in this process, of two steps of two micro-steps of a small model."""
    layout = Layout(engine="ddp", **kernels)
    model = build(SPEC, attention=layout.attention)
    prepare(model, layout)
    weights.materialise(model.module, names=model.names, seed=1, std=SPEC.init_std, device=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.module.parameters(), fused=True)
    attentions = [module for module in model.module.modules() if type(module).__name__.endswith("Attention")]
    modules = [(LOSS, model.head), *((ATTENTION, attention) for attention in attentions)]
    assert len(attentions) == SPEC.num_layers
    tokens = torch.randint(512, (2, 33), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        for _ in range(2):
            with record_function(MICRO_STEP):
                loss_of(model.module, model.head, tokens).backward()
        with record_function(OPTIMIZER_STEP):
            optimizer.step()
            optimizer.zero_grad()

    step()
    with naming(iter(modules)), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
        step()
    profiler.export_chrome_trace(str(path))
    return json.loads(path.read_bytes())


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns a trace with eager attention and the plain loss, and with every block computed again."""
    return traced(tmp_path_factory.mktemp("trace") / "t.json", attention="eager", checkpointing="full")


def second_step(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the three ranges of the second step, which is the one that counts."""
    ranges = [event for event in trace["traceEvents"] if event.get("name") in (MICRO_STEP, OPTIMIZER_STEP)]
    return sorted(ranges, key=lambda event: event["ts"])[3:]


@pytest.mark.slow
class TestARealTrace:
    def test_its_parts_add_up_to_the_step(self, eager: dict[str, Any]) -> None:
        step, ranges = step_sums(eager, grad_accum=2), second_step(eager)
        wall_us = ranges[-1]["ts"] + ranges[-1]["dur"] - ranges[0]["ts"]
        assert step.wall_s == pytest.approx(wall_us / 1e6)
        parts = {name: getattr(step, f"{name}_s") for name in NAMES}
        assert all(parts[name] > 0 for name in NAMES[:5]) and parts["idle"] > 0
        assert parts["communication_exposed"] == parts["communication_hidden"] == 0
        assert not has_kernels(eager)

    def test_the_head_counts_as_loss_forward_and_backward(self, eager: dict[str, Any]) -> None:
        """Checks the head's three products, recognized by their shapes in the trace.

        Without a rule for the head they would count as ordinary products.
        """
        ranges = second_step(eager)
        first_us, last_us = ranges[0]["ts"], ranges[-1]["ts"]
        products = [
            event
            for event in eager["traceEvents"]
            if event.get("name") == "aten::mm" and first_us <= event["ts"] < last_us
            if any(512 in shape for shape in event["args"]["Input Dims"])
        ]
        assert len(products) == 6, "three of each micro-step"
        head_s = sum(product["dur"] for product in products) / 1e6
        assert step_sums(eager, grad_accum=2).loss_s > head_s

    def test_without_names_shapes_tell_the_head(self, eager: dict[str, Any]) -> None:
        """Checks a trace without names, as of a model compiled whole.

        Nothing identifies eager attention's element-wise part in it.
        """
        bare = {"traceEvents": [event for event in eager["traceEvents"] if event.get("name") not in (LOSS, ATTENTION)]}
        with_names = step_sums(eager, grad_accum=2)
        by_name, by_shape = (step_sums(bare, grad_accum=2, head_widths=frozenset(w)) for w in ((), (512,)))
        assert by_name.loss_s < by_shape.loss_s <= with_names.loss_s
        assert by_name.matmul_s > by_shape.matmul_s == pytest.approx(with_names.matmul_s)
        assert by_name.attention_s < with_names.attention_s
        assert by_shape.wall_s == pytest.approx(by_name.wall_s)

    def test_what_is_computed_again_is_named_too(self, eager: dict[str, Any]) -> None:
        attention = [event for event in eager["traceEvents"] if event.get("name") == ATTENTION]
        assert len(attention) == 2 * 2 * 2 * SPEC.num_layers

    def test_a_chunked_loss_is_named_by_its_own_function(self, tmp_path: Path) -> None:
        step = step_sums(traced(tmp_path / "t.json", loss="chunked", attention="sdpa"), grad_accum=2)
        assert step.loss_s > 0 and step.attention_s > 0 and step.matmul_s > 0

    def test_one_step_is_not_enough(self, eager: dict[str, Any]) -> None:
        first = second_step(eager)[0]["ts"]
        cut = [event for event in eager["traceEvents"] if event.get("ts", 0) < first]
        with pytest.raises(ValueError, match="holds 1 whole steps"):
            step_sums({"traceEvents": cut}, grad_accum=2)


def test_names_are_nothing_while_nothing_is_profiled() -> None:
    assert named("x") is named("y"), "one context for all, which does nothing"
    module = torch.nn.Linear(2, 2)
    with naming(iter([(LOSS, module)])):
        assert named("x") is not named("x")
        assert all(vars(module)[hooks] for hooks in ("_forward_hooks", "_forward_pre_hooks"))
    assert not any(vars(module)[hooks] for hooks in ("_forward_hooks", "_forward_pre_hooks"))
    assert named("x") is named("y")


class Device:
    """Writes the events of a device's trace: a launch on the host, and later what it launched."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def host(self, name: str, start: float, end: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": start, "dur": end - start, "args": args}
        )

    def kernel(
        self, name: str, launched: float, start: float, end: float, stream: int = 7, description: str = ""
    ) -> None:
        number = len(self.events)
        self.host("cudaLaunchKernel", launched, launched + 0.1, "cuda_runtime", tid=self.thread, correlation=number)
        event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": end - start}
        group = {"Process Group Description": description} if description else {}
        self.events.append({**event, "args": {"correlation": number, "stream": stream, "device": 0, **group}})

    thread = 1

    def arrow(self, forward: tuple[int, float], backward: tuple[int, float]) -> None:
        """Adds the arrow that the profiler draws from a forward operation to its backward node."""
        number = len(self.events)
        for end, (tid, ts) in (("s", forward), ("f", backward)):
            self.events.append({"ph": end, "cat": "fwdbwd", "name": "fwdbwd", "id": number, "tid": tid, "ts": ts})


def step_on(device: Device, start_us: float) -> None:
    """Adds a step of 100 us, whose kernels run 20 us behind their launches; another thread launches backward ones."""
    device.host(MICRO_STEP, start_us, start_us + 40, "user_annotation")
    device.host("aten::mm", start_us + 2, start_us + 4)
    device.kernel("nvjet_tst", start_us + 3, start_us + 20, start_us + 40)
    device.host(LOSS, start_us + 5, start_us + 8, "user_annotation")
    device.host("aten::to", start_us + 6, start_us + 7)
    device.kernel("elementwise", start_us + 6.5, start_us + 40, start_us + 45)
    device.thread = 2
    device.host("ToCopyBackward0", start_us + 10, start_us + 12, tid=2)
    device.arrow((1, start_us + 6), (2, start_us + 10))
    device.kernel("elementwise", start_us + 11, start_us + 45, start_us + 50)
    device.kernel("ncclDevKernel_AllReduce", start_us + 13, start_us + 48, start_us + 70, stream=20)
    device.kernel("triton_tem_fused_flex_attention_backward_1", start_us + 14, start_us + 50, start_us + 60)
    device.thread = 1
    device.host(OPTIMIZER_STEP, start_us + 40, start_us + 60, "user_annotation")
    device.kernel("elementwise", start_us + 45, start_us + 75, start_us + 100)
    device.kernel("ncclDevKernel_AllGather", start_us + 50, start_us + 100, start_us + 105, stream=20, description="tp")


def test_a_device_s_time_line() -> None:
    """Checks steps of 100 us, the last one of 105.

    A step's part of the time line begins where its first compute begins on the device.
    """
    device = Device()
    for number in range(3):
        step_on(device, 1000.0 + 100 * number)
    device.host("cudaDeviceSynchronize", 1300.0, 1330.0, "cuda_runtime")
    device.kernel("elementwise", 1340.0, 1345.0, 1346.0)  # losses are read
    trace = {"traceEvents": device.events}
    assert has_kernels(trace)
    step = step_sums(trace, grad_accum=1)
    # From 20 us of one step to 20 us of the next one, and to 105 us of the last: the mean of these two.
    expected = Sums(
        matmul_s=20e-6,
        loss_s=10e-6,
        attention_s=10e-6,
        optimizer_s=25e-6,
        communication_exposed_s=15e-6,
        communication_hidden_s=12e-6,
        idle_s=12.5e-6,
        exposed_tp_s=5e-6,
        exposed_dp_s=10e-6,
    )
    for name in (*NAMES, "exposed_tp", "exposed_dp"):
        assert getattr(step, f"{name}_s") == pytest.approx(getattr(expected, f"{name}_s"), abs=1e-9), name
    assert step.wall_s == pytest.approx((100e-6 + 85e-6) / 2)
