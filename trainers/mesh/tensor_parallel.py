"""Tensor parallelism with sequence parallelism (arXiv 1909.08053, 2205.05198): a rank's part of every block.

The residual stream between blocks is cut along the micro-batch's tokens. Attention and the feed-forward block gather
it, compute this rank's heads and columns, and reduce-scatter the products of the row-wise layers. The tokens of all
sequences are cut as one row, so that collectives work on contiguous tensors without copies. Pipeline stages exchange
only the parts. The vocabulary is cut too: embedding and head hold this rank's rows of their table, and no rank holds
all logits of its tokens.

A rank's part of a weight is a plain parameter of the part's size. So FSDP2 and DDP handle parts like whole parameters,
and the host dispatches no operations of tensor subclasses in Python. Parameters that all ranks of a group hold whole
(norms, biases of row-wise layers) get gradients of this rank's tokens alone; `sum_replicated` completes them once a
step.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from trainers.distributed.collectives import all_reduce, gather, reduce_in_place, reduce_scatter, take_part
from trainers.distributed.groups import Mesh
from trainers.distributed.state import StateTensor, TensorPart
from trainers.kernels.head import split_head
from trainers.models.adapters import adapted
from trainers.models.model import Model, PassThrough
from trainers.spec.adapters import DOWN, UP
from trainers.spec.architectures import architecture_of


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """The cut of a parameter over the ranks: along `dim`, separately for each of its `stacked` matrices."""

    dim: int
    stacked: int = 1


class TensorParallel:
    """A model, or stages of it, cut over the ranks of the mesh's `tp` axis; one rank changes nothing."""

    def __init__(self, models: Sequence[Model], mesh: Mesh) -> None:
        model = models[0]
        self.size = mesh.size("tp")
        self._rank = mesh.coordinates["tp"] if self.size > 1 else 0
        self._cuts: dict[str, Cut] = {}
        self._replicated: set[str] = set()
        self._sequences = torch.Size()
        """(micro-batch, length) of the hidden states that were last folded or unfolded."""
        heads = model.spec.num_heads // self.size
        self.heads = range(self._rank * heads, (self._rank + 1) * heads)
        if self.size == 1:
            return
        self._group = mesh.group("tp")
        self._family = architecture_of(model.spec.architecture)
        self._first_row = self._rank * (model.spec.vocab_size // self.size)
        for model in models:
            for name, block in zip(model.block_names, model.blocks, strict=True):
                self._cut_block(name, block)
                self._replicated |= {f"{name}.{parameter_name}" for parameter_name, _ in block.named_parameters()}
            self._cut_vocabulary(model)
            self._fold_between(model)
        self._replicated |= {f"{self._family.final_norm}.{parameter_name}" for parameter_name in ("weight", "bias")}
        self._replicated -= self._cuts.keys()

    def enter(self, models: Sequence[Model]) -> None:
        """Gives the first block of each model this rank's tokens, and the head its part of the logits.

        Call it after blocks were compiled or wrapped and the head has its loss, so that these hooks run outside. In a
        pipeline stage without blocks the final norm gets the tokens.
        """
        for model in models if self.size > 1 else ():
            first = model.units[0] if model.units else model.module.get_submodule(self._family.final_norm)
            first.register_forward_pre_hook(_before(self._unfolded), with_kwargs=True)
            if model.has_head:
                split_head(model.head, self._first_row, self._group)

    def cut(self, name: str, full: torch.Tensor) -> torch.Tensor:
        """Returns this rank's part of the parameter `name`."""
        if (cut := self._cuts.get(name)) is None:
            return full
        parts = [piece.chunk(self.size, cut.dim)[self._rank] for piece in full.chunk(cut.stacked, cut.dim)]
        return torch.cat(parts, cut.dim)

    def placed(self, name: str, tensor: StateTensor) -> StateTensor:
        """Returns `tensor`, a part of this rank's parameter `name`, with its place in the whole model."""
        if (cut := self._cuts.get(name)) is None:
            replica = tensor.replica * self.size + self._rank
            return dataclasses.replace(tensor, replica=replica, num_replicas=tensor.num_replicas * self.size)
        shape = list(tensor.shape)
        step = shape[cut.dim] // cut.stacked  # rows of one stacked matrix in this rank's part
        shape[cut.dim] *= self.size
        parts = tuple(
            TensorPart(offsets=offsets, tensor=values)
            for part in tensor.parts
            for offsets, values in self._moved(part, cut, step)
        )
        return dataclasses.replace(tensor, shape=tuple(shape), parts=parts)

    def _moved(self, part: TensorPart, cut: Cut, step: int) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
        """Yields the offsets in the whole, and the values, of each stacked matrix's share of a part."""
        first, length = part.offsets[cut.dim], part.tensor.shape[cut.dim]
        for matrix in range(cut.stacked):
            start, stop = max(first, matrix * step), min(first + length, (matrix + 1) * step)
            if start < stop:
                offsets = list(part.offsets)
                offsets[cut.dim] = matrix * step * (self.size - 1) + self._rank * step + start
                yield tuple(offsets), part.tensor.narrow(cut.dim, start - first, stop - start)

    def is_cut(self, name: str) -> bool:
        return name in self._cuts

    def sum_replicated(self, gradients: Iterable[tuple[str, torch.Tensor | None]], device: torch.device) -> None:
        """Sums in place the gradients of parameters that all ranks hold whole and apply to a part of the tokens."""
        if self.size == 1:
            return
        replicated = [gradient for name, gradient in gradients if name in self._replicated and gradient is not None]
        if not replicated:  # a pipeline stage with only an embedding
            return
        flat = torch.cat([summand.flatten() for summand in replicated]).to(device)
        reduce_in_place(flat, self._group)
        for gradient, total in zip(replicated, flat.split([summand.numel() for summand in replicated]), strict=True):
            gradient.copy_(total.view_as(gradient))

    @staticmethod
    def in_effect(models: Sequence[Model]) -> int | None:
        """Returns the degree by which the vocabulary is cut, from this rank's rows of it; None if it has none."""
        for model in models:
            family = architecture_of(model.spec.architecture)
            for path in (family.embeddings[0], family.head):
                layer: Any = model.module.get_submodule(path)
                if not isinstance(layer, PassThrough):
                    return model.spec.vocab_size // layer.weight.shape[0]
        return None

    def _cut_block(self, name: str, block: nn.Module) -> None:
        family, inside = self._family, set[str]()
        for path, kind in family.tensor_parallel.items():
            layer: Any = block.get_submodule(path)
            transposed = isinstance(layer, Conv1D)  # weight [in, out]
            inside.add(path.rpartition(".")[0])
            if kind == "colwise":
                stacked = family.stacked.get(path, 1)
                self._cuts[f"{name}.{path}.weight"] = Cut(dim=int(transposed), stacked=stacked)
                self._cuts[f"{name}.{path}.{UP}.weight"] = Cut(dim=0, stacked=stacked)
                if layer.bias is not None:
                    self._cuts[f"{name}.{path}.bias"] = Cut(dim=0, stacked=stacked)
                if transposed:
                    layer.nf //= self.size
            else:
                self._cuts[f"{name}.{path}.weight"] = Cut(dim=1 - int(transposed))
                self._cuts[f"{name}.{path}.{DOWN}.weight"] = Cut(dim=1)
                layer.__class__ = _TransposedRows if transposed else _Rows
                layer.group = self._group
        for path in sorted(inside):
            block.get_submodule(path).register_forward_pre_hook(_before(self._gather), with_kwargs=True)
        attention: Any = block.get_submodule(family.attention_path)
        for size in family.head_sizes:
            setattr(attention, size, getattr(attention, size) // self.size)

    def _cut_vocabulary(self, model: Model) -> None:
        table: Any = model.module.get_submodule(self._family.embeddings[0])
        head: Any = model.head
        for layer in (table, head):
            if not isinstance(layer, PassThrough):
                self._cuts[model.names[layer.weight]] = Cut(dim=0)
        if not isinstance(table, PassThrough):
            table.__class__ = _Table
            table.group, table.first_row = self._group, self._first_row

    def _fold_between(self, model: Model) -> None:
        """Folds hidden states between the blocks and the modules around them: embeddings, other stages, the head.

        Folding gives this rank's tokens [1, tokens, width] the shape [micro-batch, length, width / tp] in the same
        memory, which is all that pipeline stages exchange. A model's own code reads positions and masks from the first
        two sizes and does not compute with the values there. GPT-2 gives the final norm's output the shape of the
        blocks' input, so both must be folded.
        """
        family, module = self._family, model.module
        embedded, norm = module.get_submodule(family.embeddings[-1]), module.get_submodule(family.final_norm)
        if not isinstance(module.get_submodule(family.embeddings[0]), PassThrough):
            embedded.register_forward_hook(_after(self._cut_tokens))
        norm.register_forward_hook(_after(self._folded))
        if model.has_head:
            model.head.register_forward_pre_hook(_before(self._gather_folded), with_kwargs=True)

    def _cut_tokens(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns this rank's tokens, folded, from the tokens of all ranks."""
        self._sequences = hidden.shape[:2]
        return self._folded(take_part(hidden.flatten(0, 1), self._group))

    def _folded(self, part: torch.Tensor) -> torch.Tensor:
        return part.reshape(*self._sequences, -1)

    def _unfolded(self, folded: torch.Tensor) -> torch.Tensor:
        self._sequences = folded.shape[:2]
        return folded.reshape(1, -1, folded.shape[2] * self.size)

    def _gather_folded(self, folded: torch.Tensor) -> torch.Tensor:
        return self._gather(self._unfolded(folded))

    def _gather(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the hidden states of all tokens in the type of products. Under autocast a norm's output is fp32;
        casting it before the exchange halves the bytes.
        """
        device_type = hidden.device.type
        if torch.is_autocast_enabled(device_type):
            hidden = hidden.to(torch.get_autocast_dtype(device_type))
        return gather(hidden.squeeze(0), 0, self._group).unflatten(0, self._sequences)


def _before(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Returns a hook that changes a module's first argument, positional or named `hidden_states`, before it runs."""

    def hook(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

    return hook


def _after(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    return lambda _module, _args, output: change(output)


def _reduced(shares: torch.Tensor, group: Any) -> torch.Tensor:
    """Returns this rank's tokens [1, tokens, width] of the sum over ranks of `shares` [micro-batch, length, width]."""
    return reduce_scatter(shares.flatten(0, 1), group)[None]


class _Rows(nn.Linear):
    """A row-wise layer: its product is summed over the ranks and cut by tokens; the bias is added once."""

    group: Any

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        out = _reduced(adapted(self, input, F.linear(input, self.weight)), self.group)
        bias: Any = self.bias
        return out if bias is None else out + bias.to(out.dtype)


class _TransposedRows(Conv1D):
    """`_Rows` for transformers' layer whose weight is [in, out]."""

    group: Any

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = _reduced(adapted(self, x, x @ self.weight), self.group)
        return out + self.bias.to(out.dtype)


class _Table(nn.Embedding):
    """This rank's rows of an embedding table; tokens in other ranks' rows add zeros to the sum over ranks."""

    group: Any
    first_row: int

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        row = input - self.first_row
        is_local = (row >= 0) & (row < self.weight.shape[0])
        padding = None if self.padding_idx is None else self.padding_idx - self.first_row
        if padding is not None and not 0 <= padding < self.weight.shape[0]:
            padding = None
        local_rows = F.embedding(torch.where(is_local, row, 0), self.weight, padding)
        rows = all_reduce(local_rows * is_local[..., None].to(local_rows.dtype), self.group)
        scale: Any = getattr(self, "embed_scale", None)  # Gemma's tables have it
        return rows if scale is None else rows * scale.to(rows.dtype)
