"""What tensor and context parallelism cannot do, in one sentence each; without torch."""

from collections.abc import Iterator

from trainers.values.layout import Layout
from trainers.values.recipe import Recipe


def mesh_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Why a model, its kernels or its optimizer cannot be cut as `layout` cuts them, whatever the engine."""
    if layout.tp > 1:
        yield from _of_tensor_parallel(recipe, layout)
    if layout.cp > 1:
        yield from _of_context_parallel(recipe, layout)
    if layout.tp * layout.cp > 1 and layout.compile == "model":
        yield (
            f"a model compiled whole has no collectives between its blocks, got tp {layout.tp} and cp {layout.cp}:"
            " choose compile block or none"
        )
    if layout.tp * layout.cp > 1 and layout.reshard:
        yield (
            f"FSDP2 makes the groups of reshard out of all ranks in a row, got tp {layout.tp} and cp {layout.cp}:"
            " set reshard to 0"
        )


def _of_tensor_parallel(recipe: Recipe, layout: Layout) -> Iterator[str]:
    model, tp = recipe.model, layout.tp
    tokens = recipe.seq_len // layout.cp
    cut = {
        f"the {model.num_heads} heads": model.num_heads,
        f"the {model.num_kv_heads} key/value heads": model.num_kv_heads,
        f"the feed-forward width {model.ffn_size}": model.ffn_size,
        f"the vocabulary of {model.vocab_size}": model.vocab_size,
    }
    for what, size in cut.items():
        if size % tp:
            yield f"tp {tp} does not divide {what} of {model.name}: choose a tp that does"
    if tokens % tp:
        of = f" of {recipe.seq_len} tokens over cp {layout.cp}" if layout.cp > 1 else ""
        yield f"tp {tp} does not divide a rank's sequence of {tokens} tokens{of}: choose a tp that does"
    if recipe.optimizer == "adafactor":
        yield (
            f"Adafactor factors whole matrices, and over parts of them is another algorithm, got tp {tp}:"
            " choose tp 1 or optimizer adamw"
        )
    if recipe.powersgd_rank:
        yield (
            f"PowerSGD approximates whole matrices, and parts of them by other factors, got tp {tp}:"
            " choose tp 1 or compression none or bf16"
        )


def _of_context_parallel(recipe: Recipe, layout: Layout) -> Iterator[str]:
    if recipe.seq_len % (2 * layout.cp):
        yield (
            f"cp {layout.cp} cuts a sequence into {2 * layout.cp} equal pieces, {recipe.seq_len} tokens are not a"
            " multiple of that: choose another cp or seq_len"
        )
    if layout.attention == "eager":
        yield (f"eager attention looks at a rank's own keys alone, got cp {layout.cp}: choose attention flex or sdpa")
