"""The costs of step-by-step activations, counted in the operations that transformers' modules run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.activations import ACT2FN

from trainers.spec.architectures import architecture_of

VALUES = 2**12
IN_FP32 = {"pow", "square", "expm1"}
"""Functions that autocast computes in fp32 on GPUs; on CPUs its list is another."""


class _Autocast(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in IN_FP32 and args[0].numel() >= VALUES:
            args = (args[0].float(), *args[1:])
        return func(*args, **(kwargs or {}))


class _Accesses(TorchDispatchMode):
    """Sums what operations read and write of tensors of inner width, in values of two bytes."""

    total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.total += sum(_copies(leaf) for leaf in tree_leaves((args, kwargs, results)))
        return results


def _copies(leaf: object) -> float:
    if not isinstance(leaf, torch.Tensor) or leaf.numel() < VALUES:
        return 0.0
    return leaf.numel() * leaf.element_size() / 2 / VALUES


def _counted(activation: Callable[[torch.Tensor], torch.Tensor]) -> tuple[float, float, float]:
    """Returns values accessed forward and backward, and saved, with the output's copy for the next product."""
    inner = torch.randn(VALUES, dtype=torch.bfloat16, requires_grad=True)
    gradient, saved = torch.ones(VALUES, dtype=torch.bfloat16), dict[int, float]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = _copies(tensor)
        return tensor

    with (
        _Accesses() as forward,
        _Autocast(),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        output = activation(inner).to(torch.bfloat16)
    with _Accesses() as backward:
        output.backward(gradient)
    return forward.total, backward.total, sum(saved.values()) + 1.0


@pytest.mark.parametrize(("family", "name"), [("arcee", "relu2"), ("nemotron", "relu2"), ("apertus", "xielu")])
def test_declared_costs_are_those_of_transformers_operations(family: str, name: str) -> None:
    activation = ACT2FN[name].float()
    declared = architecture_of(family).stepwise_activation
    assert declared is not None
    counts = (declared.forward_accesses, declared.backward_accesses, declared.saved_tensors)
    assert _counted(activation) == counts
