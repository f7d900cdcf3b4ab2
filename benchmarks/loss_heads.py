"""Heads with their loss side by side on one device: this project's, quack's, torch's and Liger's. Run

python -m benchmarks.loss_heads [--rows 4096] [--hidden 4096] [--vocab 250880] [--rounds 20]

Each computes the mean cross-entropy of bf16 hidden states [rows, hidden] under a bf16 table [vocab, hidden], and both
gradients. A row has the milliseconds of both passes (the heads take turns, whole passes by the device's clock), the
memory above hidden states, table and their gradients, and the relative errors of loss and gradients beside fp32. A head
that this environment lacks, or that refuses the shape, says so. Defaults are BLOOM-7b1's, two sequences of 2,048.
"""

import argparse
import functools
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from trainers.kernels.head import LossHead, use_loss_head
from trainers.spec.layout_axes import Loss
from trainers.spec.optional_kernels import installed_values

Head = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Returns the mean loss of hidden states [rows, hidden], a table [vocab, hidden] and labels [rows]."""
WARM_UP = 3


def _of_this_project(kind: Loss, vocab: int, hidden: int) -> Head:
    with torch.device("meta"):
        head = nn.Linear(hidden, vocab, bias=False)
    use_loss_head(head, kind, compiled=torch.cuda.is_available())
    assert isinstance(head, LossHead)

    def loss(states: torch.Tensor, table: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with head.with_labels(labels[None]):
            return torch.func.functional_call(head, {"weight": table}, (states[None],))

    return loss


def _of_torch() -> Head:
    function: Any = getattr(F, "linear_cross_entropy", None)
    if function is None:
        raise ImportError(f"torch {torch.__version__} has no F.linear_cross_entropy")
    return functools.partial(function, options=cast(Any, nn).LinearCrossEntropyOptions())


def _of_liger() -> Head:
    module: Any = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    return lambda states, table, labels: module.LigerFusedLinearCrossEntropyFunction.apply(states, table, labels)[0]


def _of_liger_hopper() -> Head:
    return importlib.import_module(
        "liger_kernel.ops.cutedsl.ops.fused_linear_cross_entropy_sm90"
    ).liger_fused_linear_cross_entropy_sm90


class _Inputs:
    def __init__(self, rows: int, hidden: int, vocab: int, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(0)
        states = torch.randn(rows, hidden, device=device, generator=generator)
        table = torch.randn(vocab, hidden, device=device, generator=generator) * 0.02
        self.states, self.table = (tensor.bfloat16().requires_grad_() for tensor in (states, table))
        self.labels = torch.randint(vocab, (rows,), device=device, generator=generator)

    def passes(self, head: Head) -> torch.Tensor:
        """Runs both passes; returns the loss, and leaves the gradients in the inputs."""
        self.states.grad = self.table.grad = None
        loss = head(self.states, self.table, self.labels)
        loss.backward()
        return loss.detach()

    def reference(self) -> list[torch.Tensor]:
        """Returns loss and gradients in fp32, some rows at a time: all logits need not fit."""
        states, table = (tensor.detach().float() for tensor in (self.states, self.table))
        into, total = torch.empty_like(states), torch.zeros_like(table)
        losses: list[torch.Tensor] = []
        for chunk, labels, out in zip(states.split(512), self.labels.split(512), into.split(512), strict=True):
            logits = chunk @ table.t()
            losses.append(F.cross_entropy(logits, labels, reduction="sum"))
            slope = logits.softmax(-1)
            slope[torch.arange(len(labels), device=slope.device), labels] -= 1
            slope /= len(self.labels)
            torch.mm(slope, table, out=out)
            total.addmm_(slope.t(), chunk)
        return [torch.stack(losses).sum() / len(self.labels), into, total]


def main() -> None:
    """Prints a row for each head."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=250_880)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    on_cuda = torch.cuda.is_available()
    device = torch.device("cuda") if on_cuda else torch.device("cpu")
    name = torch.cuda.get_device_name() if on_cuda else "CPU"
    print(
        f"{name}, torch {torch.__version__}: [{options.rows}, {options.hidden}] x [{options.vocab}, {options.hidden}]"
    )
    torch.backends.cuda.matmul.allow_tf32 = False
    inputs = _Inputs(options.rows, options.hidden, options.vocab, device)
    expected = inputs.reference()
    of_project = functools.partial(_of_this_project, vocab=options.vocab, hidden=options.hidden)
    kinds: tuple[Loss, ...] = ("plain", "chunked", *(("quack",) if "quack" in installed_values("loss") else ()))
    makers: dict[str, Callable[[], Head]] = {
        **{f"this project's, {kind}": functools.partial(of_project, kind) for kind in kinds},
        "torch's F.linear_cross_entropy": _of_torch,
        "Liger's": _of_liger,
        "Liger's for Hopper": _of_liger_hopper,
    }
    heads: dict[str, Head] = {}
    errors: dict[str, list[float]] = {}
    memory_gib: dict[str, float] = {}
    for title, make in makers.items():
        try:
            head = make()
            for _ in range(WARM_UP - 1):
                inputs.passes(head)
            loss = inputs.passes(head)
            assert inputs.states.grad is not None and inputs.table.grad is not None
            results = [loss, inputs.states.grad, inputs.table.grad]
            pairs = zip(results, expected, strict=True)
            errors[title] = [float((result.float() - exact).norm() / exact.norm()) for result, exact in pairs]
            memory_gib[title] = _peak_gib(inputs, head) if on_cuda else float("nan")
            heads[title] = head
        except Exception as error:  # another package's head: whatever it raises is its row
            print(f"{title:32} not here: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True)
    times_ms: dict[str, list[float]] = {title: [] for title in heads}
    for _ in range(options.rounds):
        for title, head in heads.items():
            times_ms[title].append(_pass_ms(inputs, head, device))
    print(f"{'head':32} {'ms, median':>10} {'least':>8} {'most':>8} {'GiB':>6}  errors of loss, states, table")
    for title, passes_ms in sorted(times_ms.items(), key=lambda item: statistics.median(item[1])):
        shown = ", ".join(f"{error:.1e}" for error in errors[title])
        print(
            f"{title:32} {statistics.median(passes_ms):10.3f} {min(passes_ms):8.3f} {max(passes_ms):8.3f}"
            f" {memory_gib[title]:6.2f}  {shown}"
        )


def _peak_gib(inputs: _Inputs, head: Head) -> float:
    inputs.states.grad = inputs.table.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    inputs.passes(head)
    gradients = sum(tensor.numel() * tensor.element_size() for tensor in (inputs.states, inputs.table))
    return (torch.cuda.max_memory_allocated() - before - gradients) / 2**30


def _pass_ms(inputs: _Inputs, head: Head, device: torch.device) -> float:
    if device.type == "cpu":
        began_s = time.perf_counter()
        inputs.passes(head)
        return (time.perf_counter() - began_s) * 1e3
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    inputs.passes(head)
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


if __name__ == "__main__":
    main()
