"""Context parallelism: a rank's part of every sequence, cut so that causal attention is equal work for all ranks.

A sequence is cut into 2 x cp pieces. A rank has a piece from the head and the piece equally far from the tail: queries
of the first attend to few keys, queries of the second to many. All layers but attention work token by token; attention
gathers keys and values of all ranks (`trainers.kernels.attention.Share`). If ranks exchange heads instead, each attends
to whole sequences with equal work, and its part is one piece. The loss is the mean over a rank's tokens, equally many
on all ranks, so gradients are averaged over context-parallel ranks as over data-parallel ones.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainers.distributed.groups import Mesh
from trainers.kernels.attention import SHARE, Share, takes_mask_of_ours
from trainers.kernels.head import IGNORED, Inputs
from trainers.kernels.spans import ids_of, is_label, spans_of
from trainers.models.model import Model, share_attention
from trainers.spec.layout_axes import CpExchange
from trainers.spec.recipe_axes import AttentionMask, TrainedTokens


class ContextParallel:
    """Cuts sequences of `seq_len` tokens over the mesh's `cp` axis; a rank attends with its `heads`, or some of them.

    If tokens have flags, a step's loss is the mean over its labels, whose number differs between micro-batches and
    ranks.
    """

    def __init__(
        self,
        models: Sequence[Model],
        mesh: Mesh,
        heads: range,
        *,
        seq_len: int,
        device: torch.device,
        exchange: CpExchange = "gather",
        mask: AttentionMask = "causal",
        has_flags: bool = False,
    ) -> None:
        spec = models[0].spec
        self.size = mesh.size("cp")
        self._share = Share(num_heads=spec.num_heads, heads=heads, mask=mask)
        self._has_flags = has_flags
        self._num_labels: torch.Tensor | None = None
        self.labels_of_step: torch.Tensor | None = None
        """Number of labels at the last `count_labels`, 0-dim; None if every token is one."""
        self._num_replicas = mesh.size("dp_replicate", "dp_shard")
        self._replicas = mesh.group("dp_replicate", "dp_shard") if has_flags else None
        self._takes_positions = spec.position != "alibi"
        self._makes_masks = self._takes_positions and takes_mask_of_ours(models[0].module.config)
        if self.size > 1:
            rank, self._share.group = mesh.coordinates["cp"], mesh.group("cp")
            if exchange == "all_to_all":
                count, part = len(heads) // self.size, seq_len // self.size
                self._share.heads = heads[rank * count : (rank + 1) * count]
                self._share.tokens = torch.arange(rank * part, (rank + 1) * part, device=device)
            else:
                orders = [order_of(other, self.size, seq_len) for other in range(self.size)]
                self._share.tokens = self._share.queries = orders[rank].to(device)
                self._share.keys = torch.cat(orders).to(device)
        if self.size > 1 or len(heads) < spec.num_heads or mask != "causal":
            for model in models:
                share_attention(model, self._share)

    def part(self, tokens: torch.Tensor) -> torch.Tensor:
        if self._share.tokens is None:
            return tokens
        self._share.num_queries(tokens.shape[1] // self.size)  # raises for another length
        return tokens.index_select(1, self._share.tokens)

    def entered(self, tokens: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Returns this rank's part of int64 [batch, seq_len] tokens, and further arguments of the next forward pass.
        The attention mask of that pass follows these tokens' flags.
        """
        if self._share.mask != "causal":
            self._share.spans = spans_of(tokens, self._share.mask, self._share.queries)
        if self._has_flags:
            tokens = ids_of(tokens)
        part, arguments = self.part(tokens), self.positions()
        if self._makes_masks:
            # Without a padding mask transformers searches the positions for documents, and the host waits for the
            # result.
            arguments["attention_mask"] = torch.ones_like(part, dtype=torch.bool)
        return part, arguments

    def positions(self) -> dict[str, torch.Tensor]:
        """Returns the position arguments of a model's forward pass for this rank's tokens. Under a document mask
        positions count within a document, so that each is trained as if alone; otherwise within the sequence.
        """
        if not self._takes_positions:
            return {}
        spans, tokens = self._share.spans, self._share.tokens
        if spans is None:
            return {} if tokens is None else {"position_ids": tokens[None]}
        positions = spans.queries - spans.first if self._share.mask == "document" else spans.queries[None]
        if self._share.exchanges_heads and tokens is not None:
            positions = positions.index_select(1, tokens)
        return {"position_ids": positions}

    def inputs(self, tokens: torch.Tensor) -> Inputs:
        """Returns this rank's tokens, the labels that follow them, and their positions, from tokens [batch, seq_len +
        1].
        """
        part, arguments = self.entered(tokens[:, :-1])
        labels = self.part(tokens[:, 1:])
        if self._has_flags:
            labels = torch.where(is_label(labels), labels, IGNORED)
        return Inputs(tokens=part, labels=labels, arguments=arguments, num_labels=self._num_labels)

    def count_labels(self, micro_batches: Sequence[torch.Tensor], *, all_ranks: bool) -> None:
        """Counts the labels of these tokens [batch, seq_len + 1], so that the coming losses add up to the mean over
        labels: of all data-parallel ranks (a collective), or of this rank's sequences.

        A micro-batch's summed loss is divided by the mean number of labels per micro-batch and rank; later code
        averages over both, as it does if every token has a loss.
        """
        if not self._has_flags:
            return
        count = torch.stack([is_label(tokens[:, 1:]).sum() for tokens in micro_batches]).sum()
        if all_ranks and self._num_replicas > 1:
            dist.all_reduce(count, group=self._replicas)
        self.labels_of_step = count
        parts = len(micro_batches) * self.size * (self._num_replicas if all_ranks else 1)
        self._num_labels = count.clamp(min=1) / parts

    def gathered(self, output: torch.Tensor) -> torch.Tensor:
        """Returns [batch, seq_len, ...] in sequence order from the ranks' parts; a collective without gradient."""
        if self._share.tokens is None:
            return output
        ranks = [torch.empty_like(output) for _ in range(self.size)]
        dist.all_gather(ranks, output.contiguous(), group=self._share.group)
        joined = torch.cat(ranks, 1)
        return joined if self._share.keys is None else joined.index_select(1, self._share.keys.argsort())

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the mean over the ranks' equally long parts of sequences; a collective without gradient."""
        if self.size > 1:
            dist.all_reduce(value, group=self._share.group)
        return value / self.size

    @staticmethod
    def in_effect(models: Sequence[Model]) -> int:
        """Returns the degree by which sequences are cut, read from the group that the model's attention uses."""
        share: Any = getattr(models[0].module.config, SHARE, None)
        return 1 if share is None or share.group is None else dist.get_world_size(share.group)

    @staticmethod
    def exchange_in_effect(models: Sequence[Model]) -> CpExchange:
        """Returns the objects that context-parallel ranks exchange, read from the model's attention."""
        share: Share | None = getattr(models[0].module.config, SHARE, None)
        return "all_to_all" if share is not None and share.exchanges_heads else "gather"

    @property
    def trained_in_effect(self) -> TrainedTokens | None:
        """Tokens over which the loss is averaged, by whether a step counted labels; None if a document or prefix mask
        decides too.
        """
        if self._share.mask != "causal":
            return None
        return "all" if self._num_labels is None else "marked"

    @staticmethod
    def mask_in_effect(models: Sequence[Model]) -> AttentionMask:
        share: Share | None = getattr(models[0].module.config, SHARE, None)
        return "causal" if share is None else share.mask


def order_of(rank: int, size: int, seq_len: int) -> torch.Tensor:
    """Returns the positions of a rank's tokens in its order: piece `rank` from the head, then piece `rank` from the
    tail.
    """
    piece = seq_len // (2 * size)
    places = torch.arange(piece)
    return torch.cat((places + rank * piece, places + (2 * size - 1 - rank) * piece))
