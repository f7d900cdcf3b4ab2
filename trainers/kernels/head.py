"""The head with its loss: linear cross-entropy over chunks of rows, which never holds all logits.

This project has its own code, because torch's `F.linear_cross_entropy` (from 2.13 on) takes 1.6 to 4.5 times as long on
an H200, and Liger's head for Hopper makes no step of BLOOM-7b1 faster (docs/lab/kernels.csv#graphs-and-heads.5).
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from trainers.distributed.collectives import gather, reduce_in_place
from trainers.kernels.compiled import static
from trainers.marks.kinds import LOSS
from trainers.marks.ranges import named
from trainers.spec.layout_axes import Loss

IGNORED = -100
"""Label of a token without a loss."""

CHUNK_LOGITS = 2**30
"""Largest number of logits in a chunk: 2 GiB in 16 bits, 4,096 rows of BLOOM's vocabulary."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Inputs of a model's forward pass and loss for a micro-batch."""

    tokens: torch.Tensor
    labels: torch.Tensor
    """The next tokens (already shifted by one); `IGNORED` for tokens without a loss."""
    arguments: Mapping[str, torch.Tensor]
    """Further arguments of the forward pass."""
    num_labels: torch.Tensor | None = None
    """Divisor of the summed losses, 0-dim; None if every token has a loss, for their mean."""


def causal_lm_loss(logits: torch.Tensor, labels: torch.Tensor, num_labels: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the mean cross-entropy in nats over all positions, in fp32 whatever the logits' type. `logits` is [batch,
    seq_len, vocab], `labels` int64 [batch, seq_len], already shifted by one. With `num_labels`, returns the sum over
    labels other than `IGNORED` divided by it.
    """
    rows = logits.float().flatten(0, 1)
    if num_labels is None:
        return F.cross_entropy(rows, labels.flatten())
    return F.cross_entropy(rows, labels.flatten(), reduction="sum", ignore_index=IGNORED) / num_labels


class LossHead(nn.Linear):
    """A model's head that returns the loss instead of logits while it has labels.

    The loss is then part of the model's forward pass: FSDP2's outer unit and ZeRO-3 have gathered the weight, and a
    tied weight has a single gradient hook. With a `group` this rank's weight has some rows of the vocabulary, from
    `first_row` on; logits, and the gradient by the hidden states, are this rank's share.
    """

    kind: Loss
    compiled: bool
    """Whether the elementwise part of a chunk is compiled into one pass."""
    labels: torch.Tensor | None
    num_labels: torch.Tensor | None
    """See `Inputs`."""
    group: Any
    first_row: int
    softcap: float
    """Bound of the logits, applied by a tanh; 0 for none."""
    factor: float
    """Factor of the logits; multiplied to the hidden states instead, which are fewer."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.factor != 1:
            input = input * self.factor
        if self.labels is None:
            logits = softcapped(super().forward(input), self.softcap)
            return logits if self.group is None else gather(logits, -1, self.group)
        if self.kind == "plain":
            logits = softcapped(super().forward(input), self.softcap)
            return (
                causal_lm_loss(logits, self.labels, self.num_labels)
                if self.group is None
                else _split_loss(logits, self.labels, self.first_row, self.group, self.num_labels)
            )
        half = torch.get_autocast_dtype(input.device.type) if torch.is_autocast_enabled(input.device.type) else None
        apply: Any = _ChunkedCrossEntropy.apply
        vocabulary = (self.first_row, self.group, self.softcap)
        kernel = "quack" if self.kind == "quack" else "compiled" if self.compiled else "plain"
        return apply(input, self.weight, self.labels, half or self.weight.dtype, kernel, vocabulary, self.num_labels)

    @contextlib.contextmanager
    def with_labels(self, labels: torch.Tensor, num_labels: torch.Tensor | None = None) -> Generator[None, None, None]:
        """Makes the model's forward pass return the mean loss of int64 [batch, seq_len] `labels` within the context."""
        self.labels, self.num_labels = labels, num_labels
        try:
            yield
        finally:
            self.labels = self.num_labels = None


def softcapped(logits: torch.Tensor, softcap: float) -> torch.Tensor:
    """Returns logits bounded to +-`softcap` by a tanh; unchanged for 0."""
    return softcap * torch.tanh(logits / softcap) if softcap else logits


def use_loss_head(head: nn.Module, kind: Loss, *, compiled: bool, softcap: float = 0.0, factor: float = 1.0) -> None:
    """Makes a model's head a `LossHead` in place; it takes over the logits' cap and factor from the model.

    Raises:
        ValueError: the head is not a plain linear layer without a bias.
    """
    if type(head) is not nn.Linear or any(name != "weight" for name, _ in head.named_parameters()):
        raise ValueError(f"the {kind} loss needs a linear head without a bias, got {head}")
    head.__class__ = LossHead
    assert isinstance(head, LossHead)
    head.kind, head.compiled, head.labels, head.num_labels = kind, compiled, None, None
    head.first_row, head.group, head.softcap, head.factor = 0, None, softcap, factor


def split_head(head: nn.Module, first_row: int, group: Any) -> None:
    """Gives a `LossHead` the rows of the vocabulary from `first_row` on; the other ranks of `group` have the rest."""
    assert isinstance(head, LossHead)
    head.first_row, head.group = first_row, group


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of hidden states [batch, seq_len, hidden] under a head [vocab, hidden], chunk by chunk.

    Both gradients are computed in the forward pass while a chunk's logits exist; recomputing these would cost a third
    product of the head, 4.9 % of all FLOPs at BLOOM's vocabulary. The weight's gradient is summed in fp32. The backward
    pass only scales, so a scaled fp16 loss underflows no more than the plain loss does.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        dtype: torch.dtype,
        kernel: str,
        vocabulary: tuple[int, Any, float],
        num_labels: torch.Tensor | None,
    ) -> torch.Tensor:
        first_row, group, softcap = vocabulary
        part = {"plain": _part, "compiled": _compiled_part, "quack": _quack_part}[kernel]
        if group is not None:
            rows_here = range(first_row, first_row + len(weight))
            part = functools.partial(_split_part, rows=rows_here, group=group, compiled=kernel == "compiled")
        with torch.autocast(hidden.device.type, enabled=False):
            rows, table = hidden.flatten(0, -2).to(dtype), _padded(weight.to(dtype))
            labels = labels.flatten()
            loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
            row_gradient, table_gradient = torch.empty_like(rows), None
            for chunk, chunk_labels, into in zip(
                *(tensor.split(_rows(len(table))) for tensor in (rows, labels, row_gradient)), strict=True
            ):
                logits = softcapped(chunk @ table.t(), softcap)
                slope = 1 - (logits / softcap).square() if softcap else None  # derivative of the cap
                logits[:, len(weight) :] = float("-inf")
                chunk_loss, gradient = _of_labels(part, logits, chunk_labels, has_ignored=num_labels is not None)
                gradient = gradient if slope is None else gradient * slope
                loss += chunk_loss
                torch.mm(gradient, table, out=into)
                if ctx.needs_input_grad[1]:
                    table_gradient = _add_product_fp32(table_gradient, gradient.t(), chunk)
                del logits, slope, gradient
        # A slice would share memory, and autograd could not add a tied table's other gradient in place.
        ctx.table_gradient = None if table_gradient is None else table_gradient.resize_(weight.shape)
        ctx.row_gradient = row_gradient
        ctx.shape, ctx.types = hidden.shape, (hidden.dtype, weight.dtype)
        ctx.num_labels = len(rows) if num_labels is None else num_labels
        return loss / ctx.num_labels

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scale = grad_outputs[0] / ctx.num_labels
        hidden, weight = ctx.types
        row_gradient = (ctx.row_gradient * scale).to(hidden).view(ctx.shape)
        table_gradient = ctx.table_gradient
        if table_gradient is not None:  # otherwise the table is frozen
            # Scales and casts in one pass, because the table may have gigabytes.
            into = table_gradient if table_gradient.dtype == weight else torch.empty_like(table_gradient, dtype=weight)
            table_gradient = torch.mul(table_gradient, scale, out=into)
        del ctx.row_gradient, ctx.table_gradient
        return row_gradient, table_gradient, None, None, None, None, None


def _rows(vocab: int) -> int:
    """Returns the number of rows in a chunk: as many as `CHUNK_LOGITS` allows, in whole tiles of 256 if possible."""
    rows = max(1, CHUNK_LOGITS // vocab)
    return rows // 256 * 256 or rows


def _padded(table: torch.Tensor) -> torch.Tensor:
    """Pads the table with zero rows to a multiple of 8; GPT-2's 50,257 rows run at a fifth of the rate."""
    missing = -len(table) % 8
    return F.pad(table, (0, 0, 0, missing)) if missing else table


_Part = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def _of_labels(
    part: _Part, logits: torch.Tensor, labels: torch.Tensor, *, has_ignored: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the summed loss of the rows with a label, and its gradient; `part` computes both for each row."""
    losses, gradient = part(logits, labels.clamp(min=0) if has_ignored else labels)
    if has_ignored:
        has_label = labels != IGNORED
        losses, gradient = losses * has_label, gradient.mul_(has_label[:, None])
    return losses.sum(), gradient


def _part(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns each row's loss in fp32, and its gradient by the logits [rows, vocab] in their type."""
    gradient = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    loss = F.nll_loss(gradient, labels, reduction="none")
    gradient = gradient.exp_()
    gradient.scatter_add_(1, labels[:, None], gradient.new_full((len(labels), 1), -1.0))
    return loss, gradient.to(logits.dtype)


def _fused_part(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes `_part` without in-place writes, so that a compiler makes one pass for the sums and one for the
    gradient.
    """
    wide = logits.float()
    log_sum = wide.logsumexp(dim=-1, keepdim=True)
    loss = log_sum.squeeze(-1) - wide.gather(1, labels[:, None]).squeeze(-1)
    at_label = torch.arange(logits.shape[-1], device=logits.device) == labels[:, None]
    return loss, ((wide - log_sum).exp() - at_label.float()).to(logits.dtype)


@functools.cache
def _compiled() -> Any:
    return static(_fused_part)


def _compiled_part(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _compiled()(logits, labels)


def _quack_part(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes `_part` and overwrites the logits; the kernel keeps a row in shared memory, so it reads it once."""
    from quack.cross_entropy import cross_entropy_fwd  # pyright: ignore[reportMissingImports]

    return cross_entropy_fwd(logits, labels, return_dx=True, inplace_backward=True)


def _split_part(
    logits: torch.Tensor, labels: torch.Tensor, *, rows: range, group: Any, compiled: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes `_part` for `logits` of this rank's `rows` of the vocabulary, followed by padding columns."""
    sums_of, gradient_of = _compiled_split() if compiled else (_split_sums, _split_gradient)
    # Labels of other ranks' rows become -1; otherwise they could fall on padding columns.
    labels = torch.where((labels >= rows.start) & (labels < rows.stop), labels - rows.start, -1)
    largest = logits.amax(dim=-1).float()
    reduce_in_place(largest, group, dist.ReduceOp.MAX)
    sums = sums_of(logits, labels, largest)
    reduce_in_place(sums, group)
    return sums[0].log() - sums[1], gradient_of(logits, labels, largest, sums[0])


def _split_sums(logits: torch.Tensor, labels: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Returns [2, rows]: sums of exponentials, and the logits at the labels, 0 for labels of other ranks (-1)."""
    wide = logits - largest[:, None]  # in fp32, the type of `largest`
    is_local = labels >= 0
    at_label = wide.gather(1, torch.where(is_local, labels, 0)[:, None]).squeeze(-1)
    return torch.stack((wide.exp_().sum(dim=-1), torch.where(is_local, at_label, 0.0)))


def _split_gradient(
    logits: torch.Tensor, labels: torch.Tensor, largest: torch.Tensor, sums: torch.Tensor
) -> torch.Tensor:
    wide = (logits - largest[:, None]).exp_().div_(sums[:, None])
    is_local = labels >= 0
    wide.scatter_add_(1, torch.where(is_local, labels, 0)[:, None], -is_local[:, None].to(wide.dtype))
    return wide.to(logits.dtype)


def _fused_split_gradient(
    logits: torch.Tensor, labels: torch.Tensor, largest: torch.Tensor, sums: torch.Tensor
) -> torch.Tensor:
    """Computes `_split_gradient` without a scatter, so that a compiler makes one pass of it."""
    at_label = torch.arange(logits.shape[-1], device=logits.device) == labels[:, None]
    return ((logits - largest[:, None]).exp() / sums[:, None] - at_label.float()).to(logits.dtype)


@functools.cache
def _compiled_split() -> Any:
    return static(_split_sums), static(_fused_split_gradient)


class _SplitCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of logits [rows, part of the vocabulary]; the forward pass computes the gradient."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, first_row: int, group: Any, num_labels: Any
    ) -> torch.Tensor:
        rows = range(first_row, first_row + logits.shape[-1])
        part = functools.partial(_split_part, rows=rows, group=group, compiled=False)
        loss, gradient = _of_labels(part, logits, labels, has_ignored=num_labels is not None)
        ctx.save_for_backward(gradient)
        ctx.num_labels = len(logits) if num_labels is None else num_labels
        return loss / ctx.num_labels

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * (grad_outputs[0] / ctx.num_labels).to(gradient.dtype), None, None, None, None


def _split_loss(
    logits: torch.Tensor, labels: torch.Tensor, first_row: int, group: Any, num_labels: torch.Tensor | None
) -> torch.Tensor:
    """Computes `causal_lm_loss` if no rank holds all logits."""
    apply: Any = _SplitCrossEntropy.apply
    return apply(logits.flatten(0, 1), labels.flatten(), first_row, group, num_labels)


def _add_product_fp32(total: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Returns `total` with `left @ right` added in place in fp32, or the product alone. CUDA's 16-bit products add to
    fp32 directly; a CPU's are rounded to 16 bits first.
    """
    if left.is_cuda and left.dtype != torch.float32:
        wide: Any = {"out_dtype": torch.float32}
        return torch.mm(left, right, **wide) if total is None else torch.addmm(total, left, right, **wide, out=total)
    product = torch.mm(left, right).float()
    return product if total is None else total.add_(product)


def whole_sequences(tokens: torch.Tensor) -> Inputs:
    """Returns tokens and the labels that follow them, from tokens [micro_batch, seq_len + 1]."""
    return Inputs(tokens=tokens[:, :-1], labels=tokens[:, 1:], arguments={})


def loss_of(
    module: Callable[..., Any],
    head: nn.Module,
    tokens: torch.Tensor,
    inputs: Callable[[torch.Tensor], Inputs] = whole_sequences,
) -> torch.Tensor:
    """Returns `module`'s mean loss of int64 tokens [micro_batch, seq_len + 1] with its `head`; frees the logits.
    `inputs` extracts this rank's inputs from the tokens.
    """
    prepared = inputs(tokens)
    if not isinstance(head, LossHead):
        logits = module(prepared.tokens, **prepared.arguments).logits
        with named(LOSS):
            return causal_lm_loss(logits, prepared.labels, prepared.num_labels)
    with head.with_labels(prepared.labels, prepared.num_labels):
        return module(prepared.tokens, **prepared.arguments).logits


def run_blocks(module: Callable[..., Any], head: nn.Module, prepared: Inputs) -> None:
    """Runs `module` without its `head`, which returns its input meanwhile."""
    head.forward = lambda input: input
    try:
        module(prepared.tokens, **prepared.arguments)
    finally:
        del head.forward


def loss_in_effect(head: nn.Module) -> Loss:
    return head.kind if isinstance(head, LossHead) else "plain"
