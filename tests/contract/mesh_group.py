"""Runs the cases of the mesh in one group; returns first gradients, losses, norms, logits and mismatches."""

# pyright: reportPrivateUsage=false

import contextlib
import dataclasses
import gc
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from tests.contract import exchange_cases, expert_faults, masks, whole_tensors
from tests.contract.balance import DenseBalance
from tests.contract.cases import GLOBAL_BATCH
from tests.contract.mesh_cases import MeshCase
from trainers import data
from trainers.distributed import collectives
from trainers.engines.create import create_engine
from trainers.engines.settings import plain_name
from trainers.kernels import attention, compiled, experts, head
from trainers.marks.step import Unmarked
from trainers.measuring.timed_steps import losses_of
from trainers.mesh import context_parallel, tensor_parallel
from trainers.models import weights as made_weights
from trainers.spec import engines
from trainers.spec.batch import BatchPoint
from trainers.spec.recipe import Recipe

STEPS = 2
"""Number of steps: the first shows gradients, the second the effect of the optimizer and the engine."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """The results of a short training run of one model: weights before it and after its first step, logits before it,
    the clipped gradients of its first step, and the loss and gradient norm of each step.
    """

    weights: dict[str, torch.Tensor]
    stepped: dict[str, torch.Tensor]
    logits: torch.Tensor
    gradients: dict[str, torch.Tensor]
    losses: list[float]
    grad_norms: list[float]


def run_all(cases: list[MeshCase]) -> list[dict[str, Any]]:
    """Runs the cases, with the same work on every rank.

    Returns one result for each case: `trained`, `mismatches` and `whole_logits`, or `error`.
    """
    results: list[dict[str, Any]] = []
    for case in cases:
        try:
            with planted(case.fault):
                results.append(_run(case))
        except Exception:
            results.append({"error": f"rank {dist.get_rank()}: {traceback.format_exc()}"})
        errors = _gather(results[-1].get("error"))
        if any(errors):
            results[-1] = {"error": "\n".join(filter(None, errors))}
        gc.collect()
    return results


def run_generated(cases: list[MeshCase]) -> list[dict[str, Any]]:
    """Runs `run_all` with blocks compiled by inductor, as in a real training."""
    import torch._inductor.config as inductor

    inductor.compile_threads = 1  # a daemon, as a rank is here, has no processes of its own
    compiled.BACKEND = "inductor"
    return run_all(cases)


def _run(case: MeshCase) -> dict[str, Any]:
    recipe, layout = case.recipe, case.layout
    engine: Any = create_engine(recipe, layout, torch.device("cpu"))
    weights = whole_tensors.weights(engine)
    tokens = torch.from_numpy(data.source(recipe).sequences(0, range(2)))
    # The logits are of another shape than training: no graph of its own for them.
    eager = torch.compiler.set_stance("force_eager") if layout.compile != "none" else contextlib.nullcontext()
    with eager:
        logits = engine.logits(tokens[:, :-1])
        loss = engine.loss(tokens)
    labels = masks.labels_of(tokens)
    expected_loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
    same_loss = torch.allclose(loss, expected_loss, rtol=1e-2, atol=0.0)
    gradients = note_gradients(engine)
    # Micro-steps without and with an exchange of gradients, and a pipeline filled twice, where the batch has as many.
    grad_accum = min(case.micro_steps * layout.pp, GLOBAL_BATCH // layout.data_parallel)
    batch = BatchPoint.of(recipe, layout, GLOBAL_BATCH // (layout.data_parallel * grad_accum))
    stepped: dict[str, torch.Tensor] = {}
    losses, norms = [], []
    # Every step does the same operations.
    watched = _Widths(recipe.model.vocab_size) if layout.compile == "none" else contextlib.nullcontext()
    for step in range(STEPS):
        indices = [
            data.sample_indices(
                batch,
                data_parallel=layout.data_parallel,
                rank=layout.data_parallel_rank(dist.get_rank()),
                micro_step=micro_step,
            )
            for micro_step in range(batch.grad_accum)
        ]
        source = data.source(recipe)
        with contextlib.nullcontext() if step else watched:
            result = engine.step([torch.from_numpy(source.sequences(step, index)) for index in indices], Unmarked())
        stepped = stepped or whole_tensors.weights(engine)
        losses += losses_of([result], _gather)
        norms.append(result.grad_norm.item())
    wrong = list(engines.mismatches(engine.in_effect(), recipe, layout, grad_accum=batch.grad_accum))
    if not same_loss:
        wrong.append("the held-out loss is not that of the logits")
    engine.close()
    run = Trained(weights=weights, stepped=stepped, logits=logits, gradients=gradients, losses=losses, grad_norms=norms)
    return {
        "trained": run,
        "mismatches": wrong,
        "whole_logits": watched.widths if isinstance(watched, _Widths) else None,
    }


class _Widths(TorchDispatchMode):
    """Records operations whose floating-point result is as wide as the vocabulary."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        self.widths: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.is_floating_point() and out.shape[-1:] == (self._width,):
            self.widths.append(str(func))
        return out


def note_gradients(engine: Any) -> dict[str, torch.Tensor]:
    """Returns a dict that receives the whole gradient of every parameter at the first optimizer step."""
    gradients: dict[str, torch.Tensor] = {}
    step = engine._optimizer.step

    def noting(*args: Any, **kwargs: Any) -> Any:
        if not gradients:
            gradients.update(whole_tensors.of_stages(engine, _gradients_of))
        return step(*args, **kwargs)

    engine._optimizer.step = noting
    return gradients


def _gradients_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in module.named_parameters():
        gradient: Any = parameter.grad
        if not parameter.requires_grad and gradient is None:
            continue
        yield plain_name(name), gradient.detach().float()


def _gather(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@contextlib.contextmanager
def planted(fault: str) -> Generator[None, None, None]:
    """Plants `fault` while an engine is built and runs, by changing the code that prevents the fault."""
    make = {
        "ALiBi of local heads": lambda: _change(context_parallel.ContextParallel, "__init__", _with_local_heads),
        "gradients of norms not summed": lambda: _change(
            tensor_parallel.TensorParallel, "sum_replicated", lambda _: lambda *_, **__: None
        ),
        "bias added by every rank": lambda: _change(tensor_parallel._TransposedRows, "forward", lambda _: _biased_rows),
        "norm counts replicated gradients twice": lambda: _change(
            tensor_parallel.TensorParallel, "is_cut", lambda _: lambda *_: True
        ),
        "q, k and v cut as one matrix": lambda: _change(
            tensor_parallel, "Cut", lambda original: lambda *, dim, **_: original(dim=dim)
        ),
        "rows of the vocabulary not offset": lambda: _change(
            tensor_parallel, "split_head", lambda _: lambda layer, _first, group: head.split_head(layer, 0, group)
        ),
        "gradients of other ranks' keys dropped": lambda: _change(
            collectives, "_reduce_scattered", lambda _: _own_part
        ),
        "positions not cut": lambda: _change(context_parallel.ContextParallel, "positions", lambda _: lambda _: {}),
        **masks.FAULTS,
        "mask in the order of ranks": lambda: _change(
            context_parallel.ContextParallel, "__init__", _with_keys_in_order
        ),
        "soft cap left out": lambda: _change(head, "softcapped", lambda _: lambda logits, _cap: logits),
        "window one token longer": _longer_window,
        "norms of queries and keys left out": lambda: _change(Qwen3RMSNorm, "forward", _without_norm_of_heads),
        "router without a gradient": lambda: _change(experts, "_route", _without_gradient),
        "experts of the next token": lambda: _change(experts, "_route", _of_next_token),
        # Sinks and biases stay in the graph: DDP waits for their gradients.
        "sinks left out": lambda: _change(
            attention, "_sunk", lambda original: lambda out, *others: out + 0 * original(out, *others)
        ),
        "biases of the next expert": lambda: _change(experts._Biased, "forward", _of_next_expert),
        **expert_faults.FAULTS,
        **exchange_cases.FAULTS,
        "ALiBi by place": lambda: _change(context_parallel.ContextParallel, "__init__", _with_keys_in_order),
        "tie lost when weights are made": lambda: _change(made_weights, "materialise", _without_ties),
    }
    with make[fault]() if fault else contextlib.nullcontext():
        yield


def _change(owner: Any, name: str, change: Any) -> Any:
    return mock.patch.object(owner, name, change(getattr(owner, name)))


def _with_local_heads(original: Any) -> Any:
    return lambda self, model, mesh, heads, **sizes: original(self, model, mesh, range(len(heads)), **sizes)


def _with_keys_in_order(original: Any) -> Any:
    def changed(self: Any, *args: Any, **sizes: Any) -> None:
        original(self, *args, **sizes)
        self._share.keys = torch.arange(len(self._share.keys))

    return changed


@contextlib.contextmanager
def _longer_window() -> Generator[None, None, None]:
    attention._seen_mask.cache_clear()
    with _change(
        attention, "_visible", lambda original: lambda queries, keys, window: original(queries, keys, window + 1)
    ):
        yield
    attention._seen_mask.cache_clear()


def _without_norm_of_heads(normed: Any) -> Any:
    # The weight stays in the graph: DDP waits for its gradient.
    return lambda self, hidden: hidden + 0 * normed(self, hidden) if hidden.ndim == 4 else normed(self, hidden)


def _without_gradient(route: Any) -> Any:
    def changed(self: Any, hidden: torch.Tensor) -> Any:
        scores, weights, chosen = route(self, hidden)
        return scores, weights.detach() + 0 * weights, chosen  # still in the graph: DDP waits for its gradient

    return changed


def _of_next_token(route: Any) -> Any:
    def changed(self: Any, hidden: torch.Tensor) -> Any:
        scores, weights, chosen = route(self, hidden)
        return scores, weights, chosen.roll(1, 0)

    return changed


def _of_next_expert(biased: Any) -> Any:
    return lambda ctx, rows, bias, experts: biased(ctx, rows, bias, (experts + 1) % len(bias))


def _biased_rows(self: Any, x: torch.Tensor) -> torch.Tensor:
    return tensor_parallel._reduced(x @ self.weight + self.bias, self.group)


def _without_ties(original: Any) -> Any:
    """Returns `original` changed to give each module its own parameters, as `to_empty` does on the meta device."""

    def apart(module: torch.nn.Module, **options: Any) -> None:
        original(module, **options)
        visited: set[torch.nn.Parameter] = set()
        for child in module.modules():
            for name, parameter in list(child.named_parameters(recurse=False, remove_duplicate=False)):
                if parameter in visited:
                    setattr(child, name, torch.nn.Parameter(parameter.detach().clone()))
                visited.add(parameter)

    return apart


def _own_part(part: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    return part.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].contiguous()


def dense(case: MeshCase, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Trained:
    """Trains the plain model for the same steps in one process and returns the results."""
    recipe = case.recipe
    balance = DenseBalance(model, recipe)
    return in_one_process(
        recipe,
        dict(model.named_parameters()),
        lambda tokens: masks.dense_logits(model, tokens, recipe),
        optimizer,
        balance,
    )


def in_one_process(
    recipe: Recipe,
    parameters: Mapping[str, torch.nn.Parameter],
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    balance: DenseBalance | None = None,
) -> Trained:
    """Trains parameters for the same steps, with the logits of [batch, seq_len] flagged tokens as given."""
    source = data.source(recipe)
    weights = {name: weight.detach().clone() for name, weight in parameters.items()}
    with torch.no_grad():
        logits = logits_of(torch.from_numpy(source.sequences(0, range(2)))[:, :-1])
    gradients: dict[str, torch.Tensor] = {}
    stepped: dict[str, torch.Tensor] = {}
    losses, norms = [], []
    for step in range(STEPS):
        tokens = torch.from_numpy(source.sequences(step, range(GLOBAL_BATCH)))
        optimizer.zero_grad()
        loss = F.cross_entropy(logits_of(tokens[:, :-1]).float().flatten(0, 1), masks.labels_of(tokens).flatten())
        (loss if balance is None else loss + balance.loss()).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), recipe.grad_clip).item())
        if not step:
            gradients = {
                name: parameter.grad.clone() for name, parameter in parameters.items() if parameter.grad is not None
            }
        optimizer.step()
        if balance is not None:
            balance.step()
        stepped = stepped or {name: weight.detach().clone() for name, weight in parameters.items()}
        losses.append(loss.item())
    return Trained(
        weights=weights, stepped=stepped, logits=logits, gradients=gradients, losses=losses, grad_norms=norms
    )
